"""Run clients' own test suites against Headrace, and compare the results with the allow-lists.

    suites.py [kafka-python] [librdkafka] [--cluster] [--grow]

The suites are shell scripts outside this checkout (in ../shared/suites, or HEADRACE_SUITES). They fetch and build the
clients if needed (in SUITES_WORK; 15 minutes the first time). The run fails if a test in tests/suites/*.allow does not
pass. `--cluster` uses three brokers on ZooKeeper, with three replicas of every topic. `--grow` adds tests that pass to
the lists; nothing is ever removed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.adoption.kafka import ZooKeeper  # noqa: E402
from tests.cluster.trio import IDS, Trio, headrace  # noqa: E402
from tests.support.broker_process import BrokerProcess  # noqa: E402

SUITES = Path(os.environ.get("HEADRACE_SUITES") or ROOT.parent / "shared" / "suites")
BUILD = ROOT / ".build" / "suites"
# Settings that the suites expect.
SETTINGS = {"num.partitions": 4, "group.min.session.timeout.ms": 1000, "group.initial.rebalance.delay.ms": 0}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite: its script, and a function that reads the passed tests from the script's logs."""

    script: str
    passed: Callable[[Path], set[str]]
    selection: Callable[[set[str]], list[str]]
    """Returns the script's arguments that select these tests."""
    environment: dict[str, str]

    @property
    def allow_list(self) -> Path:
        return ROOT / "tests" / "suites" / (self.script.removesuffix(".sh").replace("_", "-") + ".allow")


def _passed_kafka_python(logs: Path) -> set[str]:
    return set(re.findall(r"^PASSED (\S+)", (logs / "pytest.log").read_text(errors="replace"), re.MULTILINE))


def _passed_librdkafka(logs: Path) -> set[str]:
    return set(re.findall(r"^PASS (\S+)", (logs / "summary.txt").read_text(errors="replace"), re.MULTILINE))


ALL = {
    "kafka-python": Suite(
        script="kafka_python.sh",
        passed=_passed_kafka_python,
        selection=lambda tests: ["-k", " or ".join(sorted(test.rpartition("::")[2] for test in tests))],
        environment={},
    ),
    "librdkafka": Suite(
        script="librdkafka.sh",
        passed=_passed_librdkafka,
        selection=lambda tests: sorted({test.partition("_")[0] for test in tests}),
        environment={"SET": "all"},
    ),
}


@contextmanager
def one_broker(directory: Path) -> Iterator[list[BrokerProcess]]:
    with BrokerProcess(directory / "data", settings=SETTINGS) as broker:
        yield [broker]


@contextmanager
def three_brokers(directory: Path) -> Iterator[list[BrokerProcess]]:
    with ZooKeeper(directory / "zookeeper") as zookeeper:
        brokers = {
            broker_id: headrace(directory, zookeeper.address, broker_id, two_disks=False, **SETTINGS)
            for broker_id in IDS
        }
        trio = Trio(zookeeper.address, brokers)
        try:
            trio.start()
            yield list(brokers.values())
        finally:
            trio.close()


def run(name: str, suite: Suite, *, cluster: bool, grow: bool) -> bool:
    """Run a suite against new brokers. Return True if all tests of the allow-list passed and no broker exited.

    Listed tests that fail are run again, because some have timeouts that are too short for a busy machine.
    """
    allowed = set(suite.allow_list.read_text().split()) if suite.allow_list.exists() else set()
    passed, survived = attempt(name, suite, [], cluster=cluster)
    again = allowed - passed
    if again and survived:
        print(f"{name}: retrying {', '.join(sorted(again))}", flush=True)
        more, survived = attempt(name, suite, suite.selection(again), cluster=cluster)
        passed |= more
    if grow:
        suite.allow_list.write_text("".join(f"{test}\n" for test in sorted(allowed | passed)))
    for test in sorted(allowed - passed):
        print(f"{name}: FAILED {test}, which is in {suite.allow_list.relative_to(ROOT)}")
    for test in sorted(passed - allowed):
        print(f"{name}: {test} passed but is not in the list{'' if grow else ' (--grow adds it)'}")
    if not survived:
        print(f"{name}: a broker exited; see {BUILD / name}/broker*.log")
    print(f"{name}: {len(passed)} tests passed; {len(allowed - passed)} of the {len(allowed)} listed ones did not")
    return survived and bool(passed) and allowed <= passed


def attempt(name: str, suite: Suite, arguments: list[str], *, cluster: bool) -> tuple[set[str], bool]:
    """Run the script once, against new brokers. Return the passed tests, and True if no broker exited."""
    logs = BUILD / name
    logs.mkdir(parents=True, exist_ok=True)
    work = os.environ.get("SUITES_WORK") or str(BUILD / "work")
    start = three_brokers if cluster else one_broker
    with tempfile.TemporaryDirectory(prefix="headrace-suite-") as directory, start(Path(directory)) as brokers:
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        print(f"{name}: running against {bootstrap}, logs in {logs}", flush=True)
        environment = {**os.environ, "WORK": work, "LOG": str(logs), **suite.environment}
        subprocess.run(["bash", str(SUITES / suite.script), bootstrap, *arguments], env=environment, check=False)
        survived = all(broker.running for broker in brokers)
        for number, broker in enumerate(brokers, 1):
            (logs / f"broker{number}.log").write_text(broker.log())
    return suite.passed(logs), survived


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs clients' own test suites against Headrace.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{' or '.join(ALL)}; default: both")
    parser.add_argument("--cluster", action="store_true", help="use three brokers on ZooKeeper")
    parser.add_argument("--grow", action="store_true", help="add newly passing tests to the allow-lists")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(ALL)
    if unknown:
        parser.error(f"unknown suite {', '.join(sorted(unknown))}: use {' or '.join(ALL)}")
    if not SUITES.is_dir():
        parser.error(f"{SUITES} does not exist: set HEADRACE_SUITES to the directory of the suites' scripts")
    outcomes = [
        run(name, ALL[name], cluster=arguments.cluster, grow=arguments.grow) for name in arguments.suites or ALL
    ]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
