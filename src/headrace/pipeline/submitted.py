"""The program that spark-submit runs: `headrace pipeline run` with the given arguments."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts this directory first on the path. Remove it, so that modules such as `errors` do not shadow others.
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    sys.argv[:] = ["headrace", "pipeline", "run", *sys.argv[1:]]
    runpy.run_module("headrace", run_name="__main__")
