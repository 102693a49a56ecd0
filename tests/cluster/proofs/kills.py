"""Kill Headrace and Kafka under a load of idempotent and transactional producers, and compare everything at the end."""

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.proofs.load import Load, Outcome
from tests.cluster.proofs.reading import check, read
from tests.cluster.proofs.rig import HEADRACE, INTERNAL_TOPICS, Rig, Say
from tests.support.replica_logs import Compared
from tests.support.waiting import wait_for

TOPIC: Final = "exact"
REPLICATED: Final = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "unclean.leader.election.enable": "false",
}
_DEFECTS: Final = ("Traceback", "this is a bug", "is no longer copied", "committed records are lost", "is offline")
"""Parts of lines in Headrace's log that show a defect."""
_EXPECTED: Final = "; waiting for it"
"""End of a line that is normal after a leader change."""


class Plan(NamedTuple):
    kills: int
    """Number of kills of Headrace, and of Kafka brokers."""
    seed: int
    partitions: int = 6
    rate: float = 100.0
    hasty: float = 0.25
    """The share of kills that do not wait until all replicas are in sync again."""
    pairs: float = 0.0
    """The share of kills that kill another broker at the same time."""


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if something was lost, duplicated, out of order or unequal."""
    chance = random.Random(plan.seed)
    with Rig(base, kafkas=(1, 2), headraces=(HEADRACE,), settings=REPLICATED) as rig:
        brokers = sorted(rig.brokers)
        assignment = [rotated(brokers, index) for index in range(plan.partitions)]
        rig.create(TOPIC, assignment, min_insync_replicas=2)
        victims = [HEADRACE] * plan.kills + [brokers[number % 2] for number in range(plan.kills)]
        chance.shuffle(victims)
        load = Load(rig.bootstrap, TOPIC, plan.partitions, transactional=2, rate=plan.rate, seed=plan.seed)
        led = pairs = 0
        started = time.monotonic()
        with load:
            for number, victim in enumerate(victims):
                load.progress()
                time.sleep(chance.uniform(0, 2))
                leads = _led(rig, victim)
                led += leads
                killed = time.monotonic()
                others = [broker for broker in brokers if broker != victim]
                together = [victim, *([chance.choice(others)] if chance.random() < plan.pairs else [])]
                pairs += len(together) - 1
                for broker in together:
                    rig.brokers[broker].sigkill()
                rig.restart(*together)
                waits = number == len(victims) - 1 or chance.random() >= plan.hasty
                if waits:
                    rig.wait_for_sync()
                say(
                    f"{number + 1}/{len(victims)}: {' and '.join(map(name_of, together))}, "
                    f"leader of {leads}; {'in sync' if waits else 'registered'} after "
                    f"{time.monotonic() - killed:.0f} s; {load.acknowledged} records acknowledged"
                )
                load.check()
            load.progress()
        seconds = time.monotonic() - started
        say(f"stopped after {seconds:.0f} s: {load.acknowledged} records acknowledged; reading and comparing")
        load.check()
        rig.wait_for_sync()
        figures = verify(rig, TOPIC, plan.partitions, load)
        ended = rig.ended_themselves()
        truncations = truncations_by_headrace(rig)
    return {
        "seed": plan.seed,
        "kills of Headrace": plan.kills,
        "kills of Kafka": plan.kills,
        "other brokers killed at the same time": pairs,
        "partitions led by the killed brokers": led,
        "truncations by Headrace": truncations,
        "seconds": round(seconds),
        "brokers that ended because the machine was too busy": ended,
        **figures,
    }


def _led(rig: Rig, broker: int) -> int:
    """Return the number of partitions that a broker leads; if it leads none, make it lead some first."""

    def count() -> int:
        return sum(state.leader == broker for state in rig.states(TOPIC).values())

    if not count():
        rig.wait_for_sync()
        rig.elect_preferred_leaders()
    return wait_for(count, f"{name_of(broker)} leads", timeout_s=60)


def verify(rig: Rig, topic: str, partitions: int, load: Load) -> dict[str, Any]:
    """Compare what the producers know with a full read, and the replicas with each other. Raises AssertionError."""
    found = read(rig.bootstrap, topic, partitions)
    findings = check(found, load.written)
    compared = compare_all(rig, topic)
    outcomes = load.outcomes
    assert not findings.all, f"{len(findings.all)} wrong: " + "\n".join(findings.all[:20])
    defects = defects_in(rig.headraces)
    assert not defects, "in Headrace's log: " + "\n".join(defects[:20])
    return {
        "records acknowledged": load.acknowledged,
        "records read": found.size,
        "transactions committed": outcomes[Outcome.COMMITTED],
        "transactions aborted": outcomes[Outcome.ABORTED],
        "transactions of unknown outcome": outcomes[Outcome.UNKNOWN],
        "fatal errors of transactional producers": len(load.fatal_errors),
        "lost": 0,
        "duplicated": 0,
        "out of order": 0,
        "batches equal on 3 replicas": compared.batches,
        "bytes equal on 3 replicas": compared.size,
    }


def compare_all(rig: Rig, *topics: str) -> Compared:
    """Compare all replicas of these and the internal topics below the high watermarks. Raises UnequalLogsError."""
    total = Compared(0, 0, 0)
    for topic in (*topics, *(name for name in rig.topics() if name in INTERNAL_TOPICS)):
        total += rig.compare(topic, rig.high_watermarks(topic))
    return total


def truncations_by_headrace(rig: Rig) -> int:
    return sum(broker.log().count(": truncated to offset") for broker in rig.headraces.values())


def name_of(broker: int) -> str:
    return "Headrace" if broker == HEADRACE else f"Kafka {broker}"


def defects_in(brokers: Mapping[int, Any]) -> list[str]:
    """Return the lines in the logs of Headrace brokers that show a defect."""
    return [
        f"broker {broker_id}: {line}"
        for broker_id, broker in brokers.items()
        for line in broker.log().splitlines()
        if any(defect in line for defect in _DEFECTS) and not line.endswith(_EXPECTED)
    ]


def rotated(brokers: list[int], by: int) -> list[int]:
    by %= len(brokers)
    return brokers[by:] + brokers[:by]
