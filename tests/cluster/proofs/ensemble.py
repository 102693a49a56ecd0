"""Three Headrace brokers on three ZooKeeper servers: their leader is killed, and all of them are away for a minute."""

import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer

from tests.cluster.proofs.kills import rotated
from tests.cluster.proofs.load import Load
from tests.cluster.proofs.rig import Say
from tests.cluster.proofs.verdict import verify
from tests.cluster.proofs.zookeepers import Ensemble, Host
from tests.cluster.trio import IDS, Trio, headrace
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

TOPIC: Final = "ensemble"
_PARTITIONS: Final = 6
_INTERNAL: Final[dict[str, Any]] = {
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    # The replicas of compacted topics are equal only before their cleaners have run.
    "log.cleaner.enable": "false",
}


class Plan(NamedTuple):
    seed: int
    away_s: float = 60.0
    """How long the whole ensemble is away."""
    rate: float = 100.0


class _Cluster(NamedTuple):
    """Everything that would change if something failed over."""

    controller_epoch: int
    registrations: dict[int, int]
    """The transaction that registered each broker: its epoch."""
    leaders: dict[int, tuple[int, int]]
    """Leader and leader epoch by partition."""


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if anything stops, fails over, or is lost."""
    with Ensemble(base, [Host()] * 3) as ensemble:
        brokers = {broker_id: headrace(base, ensemble.address, broker_id, **_INTERNAL) for broker_id in IDS}
        trio = Trio(ensemble.address, brokers)
        try:
            trio.start()
            return _run(plan, trio, ensemble, say)
        finally:
            trio.close()


def _run(plan: Plan, trio: Trio, ensemble: Ensemble, say: Say) -> dict[str, Any]:
    create_topic(trio.bootstrap, TOPIC, replicas=[rotated(list(IDS), index) for index in range(_PARTITIONS)])
    trio.settle()
    load = Load(trio.bootstrap, TOPIC, _PARTITIONS, transactional=1, rate=plan.rate, seed=plan.seed)
    consumed = _Consumed(trio.bootstrap)
    with load, consumed:
        load.progress()
        trio.settle()
        before = _observed(trio)
        leader = ensemble.leader()
        say(f"ZooKeeper server {leader} leads the ensemble; killing it")
        ensemble.kill(leader)
        pause_s = _longest_pause(load, consumed, 15, say)
        next_leader = ensemble.leader()
        ensemble.start(leader)
        wait_for(lambda: ensemble.mode(leader) == "follower", f"server {leader} follows", timeout_s=60)
        after = _observed(trio)
        assert after == before, f"after the loss of the ZooKeeper leader: {before} became {after}"
        say(f"Server {next_leader} leads; nothing has failed over; longest pause {pause_s:.1f} s")

        ensemble.kill(*ensemble.numbers)
        say(f"All servers are killed, for {plan.away_s:.0f} s")
        longest_s = _longest_pause(load, consumed, plan.away_s, say)
        ensemble.start(*ensemble.numbers)
        ensemble.leader()
        say(f"All servers are back; longest pause {longest_s:.1f} s")
        trio.settle()
        after = _observed(trio)
        assert after == before, f"after the absence of the ensemble: {before} became {after}"
        create_topic(trio.bootstrap, "afterwards", replicas=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        trio.settle()
        load.progress()
    say(f"{load.acknowledged} records acknowledged; reading and comparing")
    return {
        "seed": plan.seed,
        "longest pause without the ZooKeeper leader (s)": round(pause_s, 2),
        "seconds without any ZooKeeper server": round(plan.away_s),
        "longest pause without any (s)": round(longest_s, 2),
        "changes of leaders, controllers and registrations": 0,
        **verify(trio, TOPIC, _PARTITIONS, load),
    }


def _observed(trio: Trio) -> _Cluster:
    return _Cluster(
        int(trio.zookeeper.get("/controller_epoch")[0]),
        {broker_id: trio.zookeeper.exists(f"/brokers/ids/{broker_id}").czxid for broker_id in IDS},
        {
            partition: (state["leader"], state["leader_epoch"])
            for partition in range(_PARTITIONS)
            for state in [trio.state(TOPIC, partition)]
        },
    )


def _longest_pause(load: Load, consumed: "_Consumed", seconds: float, say: Say) -> float:
    """Wait, and return the longest time in which a partition acknowledged nothing, or the consumer got nothing."""
    ends = time.monotonic() + seconds
    producers = load.written[:_PARTITIONS]  # each writes to one partition
    seen = [(time.monotonic(), written.acknowledged) for written in producers] + [(time.monotonic(), consumed.records)]
    longest = 0.0
    reported = time.monotonic()
    while (now := time.monotonic()) < ends:
        counts = [written.acknowledged for written in producers] + [consumed.records]
        for index, count in enumerate(counts):
            longest = max(longest, now - seen[index][0])
            if count > seen[index][1]:
                seen[index] = (now, count)
        assert longest < 10, f"nothing was acknowledged or consumed for {longest:.0f} s"
        if now - reported > 10:
            reported = now
            say(f"{load.acknowledged} records acknowledged, {consumed.records} consumed")
        time.sleep(0.02)
    return longest


class _Consumed:
    """A consumer of a group, in a thread, as a context manager; it commits."""

    def __init__(self, bootstrap: str) -> None:
        self.records = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "ensemble",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer")

    def __enter__(self) -> Self:
        self._consumer.subscribe([TOPIC])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            self.records += sum(message.error() is None for message in self._consumer.consume(1000, 0.1))
