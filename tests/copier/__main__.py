"""`python -m tests.copier` plays rounds of every mode with every victim (`make copier`)."""

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import get_args

from tests.copier.rounds import BROKER_SETTINGS, Mode, Plan, Victim, run_round
from tests.support.killable_broker import killable_broker


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.copier", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every mode with every victim")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-copier-") as directory:
        base = Path(directory)
        with killable_broker(base, BROKER_SETTINGS) as broker:
            for seed, mode, victim in itertools.product(range(options.rounds), get_args(Mode), get_args(Victim)):
                plan = Plan(
                    mode=mode, victim=victim, seed=seed, records=options.records, kills=options.kills, timeout_s=600
                )
                started = time.monotonic()
                run_round(broker, plan, base)
                print(
                    f"{mode}, {victim} killed, seed {seed}: equal after {time.monotonic() - started:.0f} s", flush=True
                )


if __name__ == "__main__":
    main()
