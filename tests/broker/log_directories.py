"""A broker with two log directories, and moves of partitions between them."""

from pathlib import Path

from headrace.wire.apis import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.topic_requests import new_topic
from tests.support.wire_client import WireClient

STORAGE_ERROR = "kafka_storage_error"


class Directories:
    """A broker process with two log directories: `a`, with the metadata, and `b`."""

    def __init__(
        self,
        root: Path,
        settings: dict[str, object] | None = None,
        *,
        a: Path | None = None,
        b: Path | None = None,
    ) -> None:
        self.a, self.b = a or root / "a", b or root / "b"
        self.broker = BrokerProcess(Path(f"{self.a},{self.b}"), settings=settings)
        self.broker.log_path = root / "broker.log"

    def create(self, client: WireClient, name: str, partitions: int) -> None:
        created = new_topic(client, name, partitions, file_delete_delay_ms=0)
        assert created["error_code"] == "none", created

    def directory_of(self, name: str) -> Path:
        """Return the log directory of a partition."""
        return next(item for item in (self.a, self.b) if (item / name).exists())

    def other(self, directory: Path) -> Path:
        return self.b if directory == self.a else self.a


def move(client: WireClient, directory: Path, topic: str, partition: int = 0) -> str:
    request = {"path": str(directory), "topics": [{"name": topic, "partitions": [partition]}]}
    answer = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [request]})
    code: str = answer["results"][0]["partitions"][0]["error_code"]
    return code
