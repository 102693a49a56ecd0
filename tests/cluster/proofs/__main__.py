"""`python -m tests.cluster.proofs NAME` (`make proofs ARGS="kills"`).

Starts ZooKeeper, Apache Kafka 3.9 and Headrace as processes. Progress goes to standard error, and a table of figures,
or JSON, to standard output. The exit status is 0 if everything holds, else 1.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.cluster.proofs import (
    cuts,
    ensemble,
    failovers,
    kills,
    moves,
    outages,
    pauses,
    replacement,
    scale,
    trio_kills,
)
from tests.cluster.proofs.rig import Say


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops all brokers, like Ctrl-C
    runs: dict[str, Callable[[Path, Say], dict[str, Any]]] = {
        "moves": lambda base, say: moves.run(
            moves.Plan(
                size=options.megabytes << 20,
                rate=options.throttle << 20,
                seed=options.seed,
                is_killed=options.kill_midway,
            ),
            base,
            say,
        ),
        "kills": lambda base, say: kills.run(
            kills.Plan(kills=options.kills, seed=options.seed, hasty=options.hasty, pairs=options.pairs), base, say
        ),
        "pauses": lambda base, say: pauses.run(pauses.Plan(rounds=options.rounds, seed=options.seed), base, say),
        "trio-kills": lambda base, say: trio_kills.run(
            trio_kills.Plan(kills=options.kills, blackouts=options.blackouts, seed=options.seed, hasty=options.hasty),
            base,
            say,
        ),
        "failovers": lambda base, say: failovers.run(
            failovers.Plan(failovers=options.failovers, seed=options.seed), base, say
        ),
        "replacement": lambda base, say: replacement.run(
            replacement.Plan(seed=options.seed, brokers=options.brokers, in_place=options.in_place), base, say
        ),
        "outages": lambda base, say: outages.run(outages.Plan(stops=options.stops, seed=options.seed), base, say),
        "cuts": lambda base, say: cuts.run(cuts.Plan(seed=options.seed, kafka=options.kafka), base, say),
        "ensemble": lambda base, say: ensemble.run(ensemble.Plan(seed=options.seed), base, say),
        "scale": lambda base, say: scale.run(scale.Plan(), base, say),
    }
    with tempfile.TemporaryDirectory(prefix="headrace-proofs-") as temporary:
        base = (options.directory or Path(temporary)).resolve()
        _say(f"{options.proof}, seed {options.seed}, in {base}")
        try:
            figures = runs[options.proof](base, _say)
        except AssertionError as error:
            _say(f"FAILED (seed {options.seed}): {error}")
            return 1
    if options.json:
        print(json.dumps({"proof": options.proof, **figures}))
    else:
        width = max(map(len, figures))
        for name, value in figures.items():
            print(f"{name:{width}}  {value:>16,}" if isinstance(value, int) else f"{name:{width}}  {value:>16}")
    return 0


_PROOFS: Final = (
    "moves",
    "kills",
    "pauses",
    "trio-kills",
    "outages",
    "failovers",
    "replacement",
    "cuts",
    "ensemble",
    "scale",
)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.proofs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("proof", choices=_PROOFS)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--directory", type=Path, help="keep all files in this empty directory")
    parser.add_argument("--kills", type=int, default=20, help="number of kills of Headrace, and of Kafka (kills)")
    parser.add_argument(
        "--hasty",
        type=float,
        default=0.25,
        help="share of kills that do not wait until all replicas are in sync again (kills)",
    )
    parser.add_argument("--pairs", type=float, default=0.0, help="share of kills that kill two brokers at once (kills)")
    parser.add_argument("--blackouts", type=int, default=10, help="number of kills of all brokers at once (trio-kills)")
    parser.add_argument(
        "--stops", type=int, default=3, help="number of clean stops, and of crashes, per broker (outages)"
    )
    parser.add_argument("--brokers", type=int, default=3, help="number of brokers to replace (replacement)")
    parser.add_argument(
        "--in-place", action="store_true", help="take over ids and directories of the old brokers (replacement)"
    )
    parser.add_argument("--failovers", type=int, default=50, help="number of controller failovers (failovers)")
    parser.add_argument("--rounds", type=int, default=5, help="number of pauses of Headrace, and of Kafka (pauses)")
    parser.add_argument("--kafka", action="store_true", help="run Apache Kafka instead of Headrace (cuts)")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the topic in MiB (moves)")
    parser.add_argument("--throttle", type=int, default=20, help="MiB per second (moves)")
    parser.add_argument("--kill-midway", action="store_true", help="kill Headrace during each move (moves)")
    options = parser.parse_args()
    if options.directory is not None and options.directory.exists() and any(options.directory.iterdir()):
        parser.error(f"{options.directory} is not empty")
    return options


_STARTED = time.monotonic()


def _say(text: str) -> None:
    print(f"{time.monotonic() - _STARTED:6.0f} s  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
