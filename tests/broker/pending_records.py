"""Records whose acknowledgements may wait for a blocked disk."""

from confluent_kafka import Producer

from headrace.testing import Broker
from tests.support.flush_disk import Disk


class PendingRecord:
    def __init__(self, broker: Broker, topic: str, **settings: object) -> None:
        self.outcome: str | None = None
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, **settings})
        self._producer.produce(
            topic, b"v", on_delivery=lambda error, _: setattr(self, "outcome", str(error) if error else "written")
        )

    def poll(self) -> str | None:
        self._producer.poll(0.01)
        return self.outcome


def block_disk(broker: Broker, disk: Disk, topic: str) -> None:
    disk.stuck.add(next((broker.data / f"{topic}-0").glob("*.log")).stat().st_ino)
