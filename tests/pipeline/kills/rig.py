"""A place for the jobs: topic, deployment, driver process, and the comparison of tables and topics with the truth."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from tests.pipeline.reading import latest, read_committed
from tests.pipeline.topics import Topics

JOBS: Final = ("lines", "words", "minutes")
_FILE: Final = Path(__file__).with_name("jobs.py")
_WORDS: Final = 7
_SQL: Final = """
SELECT 'words' AS name, word AS key, times AS value FROM words
UNION ALL SELECT 'minutes', date_format(minute, "yyyy-MM-dd'T'HH:mm:ssX"), lines FROM minutes
UNION ALL SELECT 'lines', 'rows', count(*) FROM lines
UNION ALL SELECT 'lines', 'places', count(DISTINCT source_partition, source_offset) FROM lines
"""
_DEPLOYMENT: Final = """
[cluster]
bootstrap = "{bootstrap}"
[place]
lake = "lake"
[spark]
master = "{master}"
driver.host = "127.0.0.1"
driver.memory = "640m"
executor.memory = "512m"
executor.extraJavaOptions = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
driver.extraJavaOptions = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ui.enabled = "false"
sql.shuffle.partitions = "2"
sql.adaptive.enabled = "false"
databricks.delta.snapshotPartitions = "2"
[jobs.lines]
topic = "in"
max_rows = {max_rows}
"""


@dataclass
class Rig:
    directory: Path
    bootstrap: str
    master: str
    max_rows: int = 500
    produced: int = 0
    truth: dict[str, Counter[str]] = field(default_factory=lambda: {"words": Counter(), "minutes": Counter()})

    def __post_init__(self) -> None:
        text = _DEPLOYMENT.format(bootstrap=self.bootstrap, master=self.master, max_rows=self.max_rows)
        (self.directory / "pipeline.toml").write_text(text)
        Topics(self.bootstrap).create("in", partitions=2, config={})
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})

    def produce(self, count: int) -> None:
        """Produce more records, each once, and wait until the broker has them."""
        for number in range(self.produced, self.produced + count):
            word = f"word {number % _WORDS}".replace(" ", "-")
            self._producer.produce("in", f"{number} {word}", partition=number % 2)
            minute = datetime.fromtimestamp(number // 60 * 60, UTC)
            self.truth["words"][word] += 1
            self.truth["minutes"][minute.strftime("%Y-%m-%dT%H:%M:%SZ")] += 1
        self.produced += count
        assert self._producer.flush(300) == 0

    def driver(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the jobs in a process group of their own: Python and its JVM."""
        command = self._command("run", *JOBS, "--from", str(_FILE), *options)
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        with (self.directory / "driver.log").open("ab") as log:
            return subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)

    def run_once(self) -> None:
        """Process everything. Raises AssertionError if a job fails."""
        driver = self.driver("--once")
        try:
            assert driver.wait(900) == 0, self.end_of_log()
        finally:
            kill(driver)

    def batch(self, job: str) -> int:
        """Return the number of the last batch that a job has begun to write; -1 for none."""
        names = (self.directory / "lake" / "_checkpoints" / "ledger" / job).glob("*.json")
        return max((int(name.stem) for name in names), default=-1)

    def check(self, sql: Callable[[str], list[dict[str, Any]]] | None = None) -> None:
        """Raise AssertionError unless tables and topics have every result exactly once.

        `sql` runs a query on the tables; without it, the command does.
        """
        tables: dict[str, dict[str, int]] = {}
        for row in (sql or self._sql)(_SQL):
            tables.setdefault(row["name"], {})[row["key"]] = row["value"]
        assert tables.pop("lines") == {"rows": self.produced, "places": self.produced}
        assert tables == {name: dict(counts) for name, counts in self.truth.items()}
        for topic, column in (("words", "times"), ("minutes", "lines")):
            records = read_committed(self.bootstrap, topic)
            twice = [each for each, times in Counter(record.identity for record in records).items() if times > 1]
            assert not twice, f"published twice: {twice[:5]}"
            assert {key: row[column] for key, row in latest(records).items()} == dict(self.truth[topic])
        published = read_committed(self.bootstrap, "lines")
        places = Counter((record.value["source_partition"], record.value["source_offset"]) for record in published)
        assert (len(places), places.total()) == (self.produced, self.produced)

    def _sql(self, text: str) -> list[dict[str, Any]]:
        command = self._command("query", text, "--from", str(_FILE), "--master", "local[2]", "--json")
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert result.returncode == 0, result.stderr
        return list(json.loads(result.stdout))

    def _command(self, *words: str) -> list[str]:
        config = ("--config", str(self.directory / "pipeline.toml"))
        return [sys.executable, "-m", "headrace", "pipeline", *words, *config]

    def end_of_log(self) -> str:
        return (self.directory / "driver.log").read_text(errors="replace")[-5000:]


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
