"""Kill Headrace brokers of a cluster without Kafka, one by one and all at once, and compare everything at the end."""

import random
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.proofs.kills import REPLICATED, TOPIC, rotated, truncations_by_headrace, verify
from tests.cluster.proofs.load import Load
from tests.cluster.proofs.rig import Rig, Say

BROKERS: Final = (1, 2, 3)
_OF_THE_CONTROLLER: Final = 0.4
"""Minimum share of the kills of single brokers that hit the controller."""


class Plan(NamedTuple):
    kills: int
    """Number of kills of single brokers."""
    blackouts: int
    """Number of kills of all brokers at once; half of them lose the checkpoints of high watermarks."""
    seed: int
    partitions: int = 6
    rate: float = 100.0
    hasty: float = 0.25
    """The share of kills that do not wait until all replicas are in sync again."""


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if something was lost, duplicated, out of order or unequal."""
    chance = random.Random(plan.seed)
    blackouts = [False] * plan.kills + [True] * plan.blackouts
    chance.shuffle(blackouts)
    controllers = led = without_checkpoints = 0
    with Rig(base, headraces=BROKERS, settings=REPLICATED) as rig:
        assignment = [rotated(list(BROKERS), index) for index in range(plan.partitions)]
        rig.create(TOPIC, assignment, min_insync_replicas=2)
        load = Load(rig.bootstrap, TOPIC, plan.partitions, transactional=2, rate=plan.rate, seed=plan.seed)
        started = time.monotonic()
        with load:
            for number, is_blackout in enumerate(blackouts):
                load.progress()
                time.sleep(chance.uniform(0, 2))
                controller = rig.controller()
                victim = chance.choice(BROKERS)
                if controller is not None and chance.random() < _OF_THE_CONTROLLER:
                    victim = controller
                victims = BROKERS if is_blackout else (victim,)
                controllers += not is_blackout and victim == controller
                led += sum(state.leader in victims for state in rig.states(TOPIC).values())
                killed = time.monotonic()
                for broker in victims:
                    rig.brokers[broker].sigkill()
                if is_blackout and without_checkpoints <= plan.blackouts // 2:
                    without_checkpoints += 1
                    for broker in victims:
                        (rig.brokers[broker].data / "replication-offset-checkpoint").unlink(missing_ok=True)
                rig.restart(*victims)
                waits = is_blackout or number == len(blackouts) - 1 or chance.random() >= plan.hasty
                if waits:
                    rig.wait_for_sync()
                who = "all brokers" if is_blackout else f"broker {victim}"
                say(
                    f"{number + 1}/{len(blackouts)}: {who}{', the controller' * (victim == controller)}; "
                    f"{'in sync' if waits else 'registered'} after {time.monotonic() - killed:.0f} s; "
                    f"{load.acknowledged} records acknowledged"
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
        "kills of single brokers": plan.kills,
        "of them of the controller": controllers,
        "kills of all brokers at once": plan.blackouts,
        "of them without checkpoints of high watermarks": without_checkpoints,
        "partitions led by the killed brokers": led,
        "truncations": truncations,
        "seconds": round(seconds),
        "brokers that ended because the machine was too busy": ended,
        **figures,
    }
