"""The command: `python -m bench [--quick] [--check] [--json]`."""

import argparse
import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException

from bench import cluster, report, storage, transactions
from bench.brokers import SETTINGS
from bench.clients import Kcat, ToolError
from bench.cluster import ClusterFigures
from bench.durability import DurabilityFigures
from bench.figures import Figures
from bench.groups import GroupFigures
from bench.loads import FULL, QUICK
from bench.rows import outcomes
from bench.run import Run
from bench.storage import StorageFigures
from bench.termination import until_interrupted
from bench.transactions import TransactionFigures

PROJECT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Measure and print. Return 1 if `--check` finds a missed bound, 2 if the measurement failed, otherwise 0."""
    options = _parse()
    jars = Path(os.environ.get("HEADRACE_KAFKA_JARS", PROJECT / ".build" / "jars" / "kafka"))
    if not any(jars.glob("kafka-tools-*.jar")):
        sys.stderr.write(f"No Kafka jars in {jars}: run `make setup`, or set HEADRACE_KAFKA_JARS to their directory.\n")
        return 2
    if not Kcat.is_installed():
        sys.stderr.write("kcat is not installed (apt-get install kcat): skipping the rows with librdkafka.\n")
    without_bounds = options.groups or options.storage or options.durability or options.transactions or options.cluster
    return until_interrupted(lambda: (_without_bounds if without_bounds else _with_bounds)(jars, options))


def _with_bounds(jars: Path, options: argparse.Namespace) -> int:
    scale = QUICK if options.quick else FULL
    try:
        with Run(scale, jars, options.dir, with_kafka=not options.headrace_only, only=options.only) as run:
            samples = run.measure()
    except (RuntimeError, ToolError, TimeoutError) as error:
        sys.stderr.write(f"\n{error}\n")
        return 2
    judged = outcomes(samples["Headrace"], samples["Kafka"])
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
    if options.json:
        json.dump(report.as_object(judged, samples["Headrace"], samples["Kafka"]), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        report.print_table(judged)
    missed = [outcome for outcome in judged if outcome.is_met is False]
    if options.check and missed:
        sys.stderr.write(f"Bounds missed: {', '.join(outcome.row.key for outcome in missed)}\n")
        return 1
    return 0


def _without_bounds(jars: Path, options: argparse.Namespace) -> int:
    """Run one of the measurements that have no bounds."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.dir) as directory:
        figures = _figures(options)(jars, Path(directory), with_kafka=not options.headrace_only)
        try:
            figures.measure()
        except (RuntimeError, ToolError, OSError, KafkaException) as error:
            sys.stderr.write(f"\n{error}\n")
            return 2
    if options.json:
        figures.print_json()
    else:
        figures.print_table()
    return 0


def _figures(options: argparse.Namespace) -> Callable[..., Figures]:
    if options.groups:
        return GroupFigures
    if options.durability:
        return DurabilityFigures
    if options.cluster:
        return functools.partial(ClusterFigures, cluster.QUICK if options.quick else cluster.FULL)
    if options.transactions:
        return functools.partial(TransactionFigures, transactions.QUICK if options.quick else transactions.FULL)
    return functools.partial(StorageFigures, storage.QUICK if options.quick else storage.FULL)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures Headrace and Apache Kafka in turn on this machine, and prints the ratios.",
        epilog="Both brokers run with their defaults, except " + ", ".join(f"{k}={v}" for k, v in SETTINGS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and records: 3 minutes instead of 30")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--json", action="store_true", help="print all samples as one JSON object instead of the table")
    parser.add_argument(
        "--only", metavar="WORDS", help="run only loads with this text in their titles, e.g. 'small batches'"
    )
    parser.add_argument(
        "--headrace-only", action="store_true", help="leave Kafka out, to compare two versions of Headrace"
    )
    parser.add_argument(
        "--groups", action="store_true", help="measure consumer groups instead: loading, commits, joins"
    )
    parser.add_argument(
        "--storage", action="store_true", help="measure large logs instead: fetching, opening, compacting"
    )
    parser.add_argument(
        "--durability", action="store_true", help="measure flush.messages=1 instead: an fsync before every reply"
    )
    parser.add_argument(
        "--dir", type=Path, help="directory of both brokers' data (default: the system's temporary directory)"
    )
    parser.add_argument(
        "--transactions",
        action="store_true",
        help="measure transactions instead: commits, consuming and producing, reading while others are open",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="measure three brokers with three replicas instead, next to Kafka 3.9 with ZooKeeper and 4.3 with KRaft",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
