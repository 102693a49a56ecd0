"""Run clients' own test suites against a broker and hold the outcome against the lists of what passes.

    suites.py [kafka-python] [librdkafka] [--grow]

The suites are shell scripts beside this checkout (../shared/suites, or HEADRACE_SUITES), which fetch and build the
clients where they are not yet (under SUITES_WORK; a quarter of an hour the first time). A test named in
tests/suites/*.allow that does not pass is a failure of this command. `--grow` adds to the lists what passed and is not
in them; nothing is ever taken out.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.broker_process import BrokerProcess  # noqa: E402

SUITES = Path(os.environ.get("HEADRACE_SUITES") or ROOT.parent / "shared" / "suites")
BUILD = ROOT / ".build" / "suites"
# What the suites expect of the broker they run against
SETTINGS = {"num.partitions": 4, "group.min.session.timeout.ms": 1000, "group.initial.rebalance.delay.ms": 0}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A script, and how to read which tests passed from the logs it leaves."""

    script: str
    passed: Callable[[Path], set[str]]
    selection: Callable[[set[str]], list[str]]
    """The script's arguments that run these tests alone."""
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


def run(name: str, suite: Suite, *, grow: bool) -> bool:
    """Run a suite against a broker of its own; whether everything allowed passed and the broker lived.

    What failed although it is allowed has a second try: some of these tests give a busy machine a second or two.
    """
    allowed = set(suite.allow_list.read_text().split()) if suite.allow_list.exists() else set()
    passed, lived = attempt(name, suite, [])
    again = allowed - passed
    if again and lived:
        print(f"{name}: once more: {', '.join(sorted(again))}", flush=True)
        more, lived = attempt(name, suite, suite.selection(again))
        passed |= more
    if grow:
        suite.allow_list.write_text("".join(f"{test}\n" for test in sorted(allowed | passed)))
    for test in sorted(allowed - passed):
        print(f"{name}: FAILED {test}, which is in {suite.allow_list.relative_to(ROOT)}")
    for test in sorted(passed - allowed):
        print(f"{name}: {test} passed and is not in the list yet{'' if grow else ' (--grow adds it)'}")
    if not lived:
        print(f"{name}: the broker ended; see {BUILD / name / 'broker.log'}")
    print(f"{name}: {len(passed)} passed, {len(allowed - passed)} of the {len(allowed)} allowed did not")
    return lived and bool(passed) and allowed <= passed


def attempt(name: str, suite: Suite, arguments: list[str]) -> tuple[set[str], bool]:
    """The tests that passed, and whether the broker outlived them."""
    logs = BUILD / name
    logs.mkdir(parents=True, exist_ok=True)
    work = os.environ.get("SUITES_WORK") or str(BUILD / "work")
    with (
        tempfile.TemporaryDirectory(prefix="headrace-suite-") as directory,
        BrokerProcess(Path(directory) / "data", settings=SETTINGS) as broker,
    ):
        print(f"{name}: running against {broker.bootstrap}, logs in {logs}", flush=True)
        environment = {**os.environ, "WORK": work, "LOG": str(logs), **suite.environment}
        subprocess.run(["bash", str(SUITES / suite.script), broker.bootstrap, *arguments], env=environment, check=False)
        lived = broker.running
        (logs / "broker.log").write_text(broker.log())
    return suite.passed(logs), lived


def main() -> int:
    parser = argparse.ArgumentParser(description="Clients' own test suites against a broker.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{' or '.join(ALL)}; both when none is named")
    parser.add_argument("--grow", action="store_true", help="add what passed to the allow-lists")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(ALL)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    if not SUITES.is_dir():
        parser.error(f"no suites in {SUITES}: set HEADRACE_SUITES to the directory that holds them")
    outcomes = [run(name, ALL[name], grow=arguments.grow) for name in arguments.suites or ALL]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
