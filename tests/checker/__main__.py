"""`python -m tests.checker`: many runs from many seeds; `make checker`."""

import argparse
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.checker.run import Verdict, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the faults in a run")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    bad = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        seeds = range(options.first, options.first + options.seeds)
        runs = {pool.submit(_play, seed, options.seconds): seed for seed in seeds}
        for done in as_completed(runs):
            failure = done.exception()
            bad += failure is not None or bool(done.result().anomalies)
            print(f"seed {runs[done]}: {failure!r}" if failure is not None else done.result(), flush=True)
    print(f"{options.seeds - bad} of {options.seeds} runs passed")
    return 1 if bad else 0


def _play(seed: int, seconds: float) -> Verdict:
    directory = Path(tempfile.mkdtemp(prefix=f"headrace-checker-{seed}-"))
    verdict = play(seed, seconds, directory)
    if verdict.anomalies:
        print(f"seed {seed}: histories and broker files are in {directory}", flush=True)
    else:
        shutil.rmtree(directory)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
