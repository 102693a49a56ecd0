"""Play many seeds on all cores."""

import argparse
import logging
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor

from tests.crashes.faults import FAULTS, RARELY_FOUND
from tests.crashes.play import Play


def outcome(seed: int, fault: str | None) -> tuple[int, str | None]:
    """Return the number of crashes checked and the traceback of a failure."""
    logging.disable(logging.CRITICAL)
    faults = [item for item in (*FAULTS, *RARELY_FOUND) if item.__name__ == fault]
    try:
        return Play.run_seed(seed, *faults), None
    except Exception:  # noqa: BLE001 any error at a start breaks a promise
        return 0, traceback.format_exc()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crashes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of seeds (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--fault", choices=[item.__name__ for item in (*FAULTS, *RARELY_FOUND)], help="fault to inject")
    arguments = parser.parse_args()
    began = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(outcome, seeds, [arguments.fault] * len(seeds), chunksize=10))
    failed = [(seed, failure) for seed, (_, failure) in zip(seeds, outcomes, strict=True) if failure is not None]
    crashes = sum(count for count, _ in outcomes)
    print(f"{crashes} crashes from {len(seeds)} seeds in {time.monotonic() - began:.1f} s, {len(failed)} seeds failed")
    if failed:
        print(f"failing seeds: {[seed for seed, _ in failed[:50]]}; the first:\n{failed[0][1]}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
