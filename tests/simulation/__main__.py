"""Simulate groups, transactions and clusters: play many seeds on all cores, or replay one."""

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.worlds import WORLDS

_REPORT_S = 30.0
_BATCH = 200
_COST = {"cluster": 10}
"""Worlds whose seeds take this many times longer, so that fewer are played."""


def failing(world: str, first: int, count: int) -> list[int]:
    """Return the seeds that break a promise."""
    logging.disable(logging.CRITICAL)
    history_of, play, _ = WORLDS[world]
    return [seed for seed in range(first, first + count) if play(history_of(seed)) is not None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seeds",
        type=int,
        default=2000,
        help="number of seeds, of which the cluster plays a tenth unless it is the only one (default: 2000)",
    )
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--only", choices=WORLDS, help="default: all")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play one seed and print all events")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    worlds = [arguments.only] if arguments.only else list(WORLDS)
    if arguments.replay is not None:
        return max(_replay(world, arguments.replay) for world in worlds)
    costs = {} if arguments.only else _COST
    return max(_play_many(world, arguments.first, arguments.seeds // costs.get(world, 1)) for world in worlds)


def _replay(world: str, seed: int) -> int:
    history_of, play, explain = WORLDS[world]
    history, trace = history_of(seed), list[str]()
    violation = play(history, trace)
    print(history, *trace, sep="\n")
    print("all promises were kept" if violation is None else explain(history, violation))
    return int(violation is not None)


def _play_many(world: str, first: int, seeds: int) -> int:
    history_of, play, explain = WORLDS[world]
    began = time.monotonic()
    batch = _BATCH // _COST.get(world, 1)
    starts = range(first, first + seeds, batch)
    counts = [min(batch, first + seeds - start) for start in starts]
    failed: list[int] = []
    played = 0
    reported = began
    pool = ProcessPoolExecutor(os.cpu_count())
    try:
        for count, bad in zip(counts, pool.map(failing, [world] * len(counts), starts, counts), strict=True):
            failed += bad
            played += count
            now = time.monotonic()
            if sys.stderr.isatty():
                print(f"\r{world}: {played} of {seeds}, {len(failed)} failed", end="\r", file=sys.stderr)
            elif now - reported >= _REPORT_S:
                reported = now
                print(f"{world}: {played} of {seeds}, {len(failed)} failed", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        pool.shutdown(cancel_futures=True)
    print(f"{world}: {played} seeds in {time.monotonic() - began:.1f} s, {len(failed)} failed: {failed[:50]}")
    if failed:
        history = history_of(failed[0])
        print(explain(history, play(history)))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
