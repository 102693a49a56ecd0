"""Archive the classes that Kafka's brokers load, which halves the processor time of a broker's start in tests.

Run by `make setup`. It starts each broker with `-XX:ArchiveClassesAtExit`: when the broker stops, Java writes the
archive.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.adoption.kafka import ZOOKEEPER_JARS, Kafka, Kraft, WithZooKeeper, ZooKeeper  # noqa: E402
from tests.support.kafka_process import kafka_classes, kafka_jars  # noqa: E402


def main() -> None:
    with TemporaryDirectory() as directory:
        base = Path(directory)
        with ZooKeeper(base / "zookeeper") as zookeeper:
            (base / "kafka-3.9").mkdir()
            _archive(WithZooKeeper(base / "kafka-3.9", zookeeper.address), ZOOKEEPER_JARS)
        (base / "kafka").mkdir()
        _archive(Kraft(base / "kafka"), kafka_jars())


def _archive(kafka: Kafka, jars: Path) -> None:
    archive = kafka_classes(jars)
    unfinished = archive.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    kafka.archive_classes(unfinished)
    unfinished.replace(archive)


if __name__ == "__main__":
    main()
