"""A group member that commits by itself; an admin client of the tests watches its commits."""

from collections.abc import Callable, Sequence

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from tests.clients.drivers.contract import DEADLINE_S, Received
from tests.clients.drivers.line_process import LineProcess
from tests.support.waiting import wait_for


class ObservedMember:
    """A program that prints records and commits by itself. The partitions start at offset 0."""

    def __init__(
        self, command: Sequence[str], parse: Callable[[str], Received], bootstrap: str, group: str, topic: str
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._topic = topic
        self._parse = parse
        self._received = self._committed()
        self._process = LineProcess(command)

    def receive(self, count: int) -> list[Received]:
        received = [self._parse(self._process.read_line()) for _ in range(count)]
        self._received += count
        return received

    def commit(self) -> None:
        what = f"group {self._group} commits {self._received} records of {self._topic}"
        wait_for(lambda: self._committed() == self._received, what, timeout_s=DEADLINE_S, interval_s=0.1)

    def close(self) -> None:
        self._process.terminate()

    def _committed(self) -> int:
        # librdkafka's admin client hangs or crashes if the coordinator that it knows is gone.
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "client.id": "tests-observer"})
        wanted = [ConsumerGroupTopicPartitions(self._group)]
        answer = admin.list_consumer_group_offsets(wanted)[self._group].result(DEADLINE_S)
        return sum(
            partition.offset
            for partition in answer.topic_partitions or ()
            if partition.topic == self._topic and partition.offset >= 0 and partition.error is None
        )
