"""Replace three Kafka brokers by three Headrace brokers and back, one by one, while clients work.

In one of two ways. A new broker with another id joins, `headrace reassign` moves all replicas from an old broker to it,
and the old broker is stopped. Or the old broker is stopped, and the new one starts with its id and its data directory.
"""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.proofs.coordinator_load import Fence, GroupMember, Observer, Source, TransactionalProducer, Worker
from tests.cluster.proofs.coordinators import INPUT, OUTPUT, read_output, split
from tests.cluster.proofs.kills import REPLICATED, TOPIC, rotated, verify
from tests.cluster.proofs.load import Load
from tests.cluster.proofs.rig import Broker, Rig, Say
from tests.support.waiting import wait_for

_KAFKAS: Final = (1, 2, 3)
_OFFSET: Final = 3
"""Headrace broker N + 3 replaces Kafka broker N, unless it takes over its directory."""
_INPUT_PARTITIONS: Final = 6
_OUTPUT_PARTITIONS: Final = 3
_GROUPS: Final = {"range-group": "range", "cooperative-group": "cooperative-sticky"}
_MEMBERS: Final = 3
_TRANSACTIONAL: Final = 2
_SETTLE_S: Final = 180.0


class Plan(NamedTuple):
    seed: int
    brokers: int = 3
    """The number of brokers that are replaced, and replaced back."""
    in_place: bool = False
    """The new broker takes over the id and the data directory."""
    partitions: int = 6
    rate: float = 40.0


class _Clients:
    """Groups, transactional producers that commit offsets, and observers of all committed offsets."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.fence = Fence()
        self.source = Source(bootstrap, INPUT, _INPUT_PARTITIONS, per_second=100)
        self.members = [
            GroupMember(bootstrap, INPUT, group, number, self.fence, strategy=strategy, restless=False)
            for group, strategy in _GROUPS.items()
            for number in range(_MEMBERS)
        ]
        self.producers = [
            TransactionalProducer(bootstrap, OUTPUT, _OUTPUT_PARTITIONS, number, seed, self.fence)
            for number in range(_TRANSACTIONAL)
        ]
        observed = dict.fromkeys(_GROUPS, (INPUT, _INPUT_PARTITIONS))
        observed |= dict.fromkeys((producer.group for producer in self.producers), (OUTPUT, 1))
        self.observer = Observer(bootstrap, observed, self.fence)

    @property
    def workers(self) -> list[Worker]:
        return [self.source, *self.members, *self.producers, self.observer]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def check(self) -> None:
        """Raise AssertionError if a client has failed, or an offset has moved backwards."""
        wrong = [f"{worker.name}: {worker.failure!r}" for worker in self.workers if worker.failure is not None]
        wrong += [f"{producer.name}: {error}" for producer in self.producers for error in producer.fatal]
        wrong += self.observer.backwards
        assert not wrong, "\n".join(wrong[:20])

    def progress(self) -> None:
        """Wait until every client has succeeded again."""
        before = {worker: worker.pauses.successes for worker in self.workers}

        def late() -> list[str]:
            self.check()
            return [worker.name for worker, count in before.items() if worker.pauses.successes < count + 2]

        wait_for(lambda: not late(), "progress of every client", timeout_s=_SETTLE_S, interval_s=0.1)

    def stop(self) -> None:
        """Wait until the groups have read everything, and stop all clients. Raises AssertionError."""
        self.source.stop()
        self.source.join()
        try:
            for group in _GROUPS:
                wait_for(
                    lambda group=group: len(self._values(group)) == self.source.sent,  # type: ignore[misc]
                    f"{group} has read all {self.source.sent} records",
                    timeout_s=_SETTLE_S,
                    interval_s=0.2,
                )
        finally:
            for worker in self.workers:
                worker.stop()
            for worker in self.workers:
                worker.join()
        self.check()

    def _values(self, group: str) -> set[int]:
        return set().union(*(member.values for member in self.members if member.group == group))


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if something was lost, duplicated, or failed."""
    with Rig(base, kafkas=_KAFKAS, settings=REPLICATED) as rig:
        kafkas = dict(rig.brokers)
        headraces = {
            broker: rig.headrace(broker, like=kafkas[broker]) if plan.in_place else rig.headrace(broker + _OFFSET)
            for broker in _KAFKAS
        }
        # Clients know all addresses, because the first brokers leave.
        bootstrap = ",".join(broker.bootstrap for broker in (*kafkas.values(), *headraces.values()))
        for topic, count in ((TOPIC, plan.partitions), (INPUT, _INPUT_PARTITIONS), (OUTPUT, _OUTPUT_PARTITIONS)):
            rig.create(topic, [rotated(list(_KAFKAS), index) for index in range(count)], min_insync_replicas=2)
        load = Load(bootstrap, TOPIC, plan.partitions, transactional=2, rate=plan.rate, seed=plan.seed)
        clients = _Clients(bootstrap, plan.seed)
        started = time.monotonic()
        steps = [(broker, True) for broker in _KAFKAS[: plan.brokers]]
        steps += [(broker, False) for broker in _KAFKAS[: plan.brokers]]
        with load:
            try:
                clients.start()
                clients.progress()
                for number, (broker, to_headrace) in enumerate(steps):
                    began = time.monotonic()
                    if plan.in_place:
                        _take_over(rig, broker, headraces[broker] if to_headrace else kafkas[broker])
                    else:
                        ids = (broker, broker + _OFFSET)
                        old, new = ids if to_headrace else ids[::-1]
                        _exchange(rig, old, new, headraces[broker] if to_headrace else kafkas[broker], base)
                    took = time.monotonic() - began
                    load.progress()
                    clients.progress()
                    kinds = sorted("Headrace" if rig.is_headrace(broker_id) else "Kafka" for broker_id in rig.brokers)
                    say(
                        f"{number + 1}/{len(steps)}: {Counter(kinds)[kinds[0]]} {kinds[0]}, controller "
                        f"{rig.controller()} of {kinds} after {took:.0f} s; {load.acknowledged} records acknowledged"
                    )
            finally:
                clients.stop()
        seconds = time.monotonic() - started
        load.check()
        assert not load.fatal_errors, load.fatal_errors[:10]
        rig.wait_for_sync()
        figures = verify(rig, TOPIC, plan.partitions, load)
        outcomes = {key: value for producer in clients.producers for key, value in producer.outcomes.items()}
        torn = split(outcomes, read_output(rig.bootstrap, _OUTPUT_PARTITIONS), _OUTPUT_PARTITIONS)
        assert not torn, "\n".join(torn[:20])
        ended = rig.ended_themselves()
    return {
        "seed": plan.seed,
        "Kafka brokers replaced, and replaced back": plan.brokers,
        "seconds": round(seconds),
        "records read by 2 groups": clients.source.sent,
        "commits of groups": sum(member.commits for member in clients.members),
        "reads of committed offsets, never backwards": clients.observer.observations,
        "transactions with offsets": len(outcomes),
        "brokers that ended because the machine was too busy": ended,
        **figures,
    }


def _exchange(rig: Rig, old: int, new: int, broker: Broker, base: Path) -> None:
    """Start a broker, move all replicas of another one to it, and stop that."""
    rig.brokers[new] = broker
    rig.restart(new)
    plan = str(base / "plan.json")
    _headrace(rig, "reassign", "plan", "--add", str(new), "--retire", str(old), "--output", plan)
    _headrace(rig, "reassign", "execute", plan, "--yes", "--watch")
    rig.wait_for_sync()
    hosted = [topic for topic in rig.topics() for replicas in rig.replicas(topic).values() if old in replicas]
    assert not hosted, f"broker {old} still has replicas of {hosted}"
    rig.brokers.pop(old).sigterm()
    rig.wait_for_brokers(*rig.brokers)


def _take_over(rig: Rig, broker_id: int, broker: Broker) -> None:
    """Stop a broker, and start another one with its id and directory."""
    rig.brokers.pop(broker_id).sigterm()
    rig.wait_for_brokers(*rig.brokers)
    rig.brokers[broker_id] = broker
    rig.restart(broker_id)
    rig.wait_for_sync()
    _headrace(rig, "elect", "--execute")


def _headrace(rig: Rig, *arguments: str) -> None:
    """Run a command of Headrace. Raises AssertionError if it fails."""
    command = [sys.executable, "-m", "headrace", *arguments, "--bootstrap", rig.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"headrace {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
