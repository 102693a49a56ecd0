"""`python -m tests.simulation`: many seeds, on all cores, or one again."""

import argparse
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.history import history_of
from tests.simulation.report import explain
from tests.simulation.world import play

_AT_ONCE = 200


def failing(first: int, count: int) -> list[int]:
    """The seeds that break a promise."""
    logging.disable(logging.CRITICAL)
    return [seed for seed in range(first, first + count) if play(history_of(seed)) is not None]


def main() -> int:
    """0 where all promises were kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many (2000)")
    parser.add_argument("--first", type=int, default=0, help="where to begin (0)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play one seed and tell all that happened")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.replay is not None:
        history, trace = history_of(arguments.replay), list[str]()
        violation = play(history, trace)
        print(history, *trace, sep="\n")
        print("all promises were kept" if violation is None else explain(history, violation))
        return violation is not None
    began = time.monotonic()
    starts = range(arguments.first, arguments.first + arguments.seeds, _AT_ONCE)
    counts = [min(_AT_ONCE, arguments.first + arguments.seeds - start) for start in starts]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = [seed for seeds in pool.map(failing, starts, counts) for seed in seeds]
    print(f"{arguments.seeds} seeds in {time.monotonic() - began:.1f} s, {len(found)} failed: {found[:50]}")
    if found:
        history = history_of(found[0])
        violation = play(history)
        assert violation is not None
        print(explain(history, violation))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
