"""Transactional producers on both brokers, their states, and their requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.parity.both import Message, Side
from tests.support.waiting import wait_for

GROUP: Final = "parity-of-transactions"
_UNKNOWN_PRODUCER: Final = 424_242
_RETRIABLE: Final = {
    "concurrent_transactions",
    "coordinator_not_available",
    "coordinator_load_in_progress",
    "not_coordinator",
}


class Producer:
    """A producer with a transactional id on a broker."""

    def __init__(self, side: Side, transactional_id: str, topic: str) -> None:
        self.side = side
        self.transactional_id = transactional_id
        self.topic = topic
        self.producer_id = _UNKNOWN_PRODUCER
        self.epoch = 1
        self.sequence = 0

    def ask(self, api: ApiKey, version: int, message: Message) -> Any:
        return self.side.ask(api, version, message, "transactions")

    def init(self, *, timeout_ms: int = 60_000) -> None:
        """Initialize, retrying until the predecessor's transaction is aborted."""
        message = init_request(self, -1, -1) | {"transaction_timeout": timeout_ms}

        answer = self.retried(ApiKey.INIT_PRODUCER_ID, 5, message)
        assert answer["error_code"] == "none", answer
        self.producer_id, self.epoch, self.sequence = answer["producer_id"], answer["producer_epoch"], 0

    def retried(self, api: ApiKey, version: int, message: Message) -> Any:
        """Retry until the answer has no retriable error, and return it."""

        def answer() -> Any:
            found = self.ask(api, version, message)
            return None if _RETRIABLE & errors_in(found) else found

        return wait_for(answer, f"an answer to {api.name}")

    def add(self) -> None:
        request = add_request(self, self.producer_id, self.epoch)
        assert errors_in(self.retried(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)) == {"none"}

    def produce(self, version: int) -> None:
        answer = self.retried(ApiKey.PRODUCE, version, produce_request(self, self.producer_id, self.epoch))
        assert errors_in(answer) == {"none"}, answer
        self.sequence += 1

    def commit_offset(self) -> None:
        offsets = offsets_request(self, self.producer_id, self.epoch)
        assert errors_in(self.retried(ApiKey.ADD_OFFSETS_TO_TXN, 3, offsets)) == {"none"}
        commit = offset_commit_request(self, self.producer_id, self.epoch)
        assert errors_in(self.retried(ApiKey.TXN_OFFSET_COMMIT, 3, commit)) == {"none"}

    def end(self, version: int, *, commit: bool) -> None:
        answer = self.retried(ApiKey.END_TXN, version, end_request(self, self.producer_id, self.epoch, commit=commit))
        assert answer["error_code"] == "none", answer
        if version >= 5:
            self.producer_id, self.epoch, self.sequence = answer["producer_id"], answer["producer_epoch"], 0
        self.settle()

    def state(self) -> str | None:
        message = {"transactional_id_pattern": self.transactional_id}
        listed = self.ask(ApiKey.LIST_TRANSACTIONS, 2, message)["transaction_states"]
        return listed[0]["transaction_state"] if listed else None

    def settle(self) -> str:
        """Wait until all markers are written, and return the state."""

        def settled() -> str | None:
            state = str(self.state())
            return None if state in ("PrepareCommit", "PrepareAbort") else state

        return str(wait_for(settled, "the markers"))

    def wait_until_over(self) -> None:
        wait_for(lambda: self.settle() != "Ongoing", f"the timeout of {self.transactional_id}")


def _let_time_out(producer: Producer) -> None:
    producer.init(timeout_ms=100)
    producer.add()


def _steps(*steps: Callable[[Producer], None]) -> Callable[[Producer], None]:
    def take(producer: Producer) -> None:
        for step in steps:
            step(producer)

    return take


def _ended(version: int, *, commit: bool) -> Callable[[Producer], None]:
    return lambda producer: producer.end(version, commit=commit)


STATES: Final[Mapping[str, Callable[[Producer], None]]] = {
    "unknown": lambda producer: None,
    "empty": Producer.init,
    "ongoing": _steps(Producer.init, Producer.add),
    "ongoing with records": _steps(Producer.init, Producer.add, lambda producer: producer.produce(11)),
    "ongoing with offsets": _steps(Producer.init, Producer.commit_offset),
    "ongoing by version 2": _steps(Producer.init, lambda producer: producer.produce(12)),
    "committed": _steps(Producer.init, Producer.add, _ended(4, commit=True)),
    "aborted": _steps(Producer.init, Producer.add, _ended(4, commit=False)),
    "committed by version 2": _steps(Producer.init, Producer.add, _ended(5, commit=True)),
    "aborted by version 2": _steps(Producer.init, Producer.add, _ended(5, commit=False)),
    "aborted by version 2, empty": _steps(Producer.init, _ended(5, commit=False)),
    "ongoing again": _steps(Producer.init, Producer.add, _ended(4, commit=True), Producer.add),
    "ongoing again by version 2": _steps(
        Producer.init, Producer.add, _ended(5, commit=True), lambda producer: producer.produce(12)
    ),
    "restarted": _steps(Producer.init, Producer.init),
    "restarted while ongoing": _steps(Producer.init, Producer.add, Producer.init),
    "timed out": _let_time_out,
}


@dataclass(frozen=True, slots=True)
class Request:
    name: str
    api: ApiKey
    version: int
    make: Callable[[Producer, int, int], Message]
    """Takes the producer, a producer id and an epoch."""


def init_request(producer: Producer, producer_id: int, epoch: int) -> Message:
    return {
        "transactional_id": producer.transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }


def add_request(producer: Producer, producer_id: int, epoch: int, *, topic: str | None = None) -> Message:
    return {
        "v3_and_below_transactional_id": producer.transactional_id,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": [{"name": topic or producer.topic, "partitions": [0]}],
    }


def batched_add_request(producer: Producer, producer_id: int, epoch: int, *, verify: bool) -> Message:
    transaction = {
        "transactional_id": producer.transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "verify_only": verify,
        "topics": [{"name": producer.topic, "partitions": [0, 1]}],
    }
    return {"transactions": [transaction]}


def offsets_request(producer: Producer, producer_id: int, epoch: int) -> Message:
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "group_id": GROUP,
    }


def offset_commit_request(
    producer: Producer, producer_id: int, epoch: int, *, generation: int = -1, member: str = ""
) -> Message:
    offset = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "seven"}
    return {
        "transactional_id": producer.transactional_id,
        "group_id": GROUP,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "generation_id": generation,
        "member_id": member,
        "topics": [{"name": producer.topic, "partitions": [offset]}],
    }


def end_request(producer: Producer, producer_id: int, epoch: int, *, commit: bool) -> Message:
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "committed": commit,
    }


def produce_request(producer: Producer, producer_id: int, epoch: int, *, sequence: int | None = None) -> Message:
    batch = build_batch(
        [RecordData(b"key", b"value", 1_700_000_000_000)],
        attributes=0x10,
        producer_id=producer_id,
        producer_epoch=max(epoch, 0),
        base_sequence=producer.sequence if sequence is None else sequence,
    )
    data = {"index": 0, "records": batch}
    topic = {"name": producer.topic, "topic_id": producer.side.topic_id(producer.topic), "partition_data": [data]}
    return {
        "transactional_id": producer.transactional_id,
        "acks": -1,
        "timeout": 5000,
        "topic_data": [topic],
    }


def _end(commit: bool) -> Callable[[Producer, int, int], Message]:
    return lambda producer, producer_id, epoch: end_request(producer, producer_id, epoch, commit=commit)


REQUESTS: Final = (
    *(Request("init", ApiKey.INIT_PRODUCER_ID, version, init_request) for version in (2, 4, 5)),
    *(Request("add", ApiKey.ADD_PARTITIONS_TO_TXN, version, add_request) for version in (0, 2, 3)),
    Request(
        "add an unknown topic",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        lambda producer, producer_id, epoch: add_request(producer, producer_id, epoch, topic="no-such-topic"),
    ),
    Request(
        "add an internal topic",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        lambda producer, producer_id, epoch: add_request(producer, producer_id, epoch, topic="__transaction_state"),
    ),
    *(
        Request(
            "verify" if verify else "add in a batch",
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            lambda producer, producer_id, epoch, verify=verify: batched_add_request(  # type: ignore[misc]
                producer, producer_id, epoch, verify=verify
            ),
        )
        for version in (4, 5)
        for verify in (False, True)
    ),
    *(Request("offsets", ApiKey.ADD_OFFSETS_TO_TXN, version, offsets_request) for version in (1, 3, 4)),
    *(
        Request("commit an offset", ApiKey.TXN_OFFSET_COMMIT, version, offset_commit_request)
        for version in (2, 3, 4, 5)
    ),
    Request(
        "commit an offset of an unknown member",
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        lambda producer, producer_id, epoch: offset_commit_request(
            producer, producer_id, epoch, generation=3, member="nobody"
        ),
    ),
    *(
        Request("commit" if commit else "abort", ApiKey.END_TXN, version, _end(commit))
        for version in (1, 3, 4, 5)
        for commit in (True, False)
    ),
    *(Request("produce", ApiKey.PRODUCE, version, produce_request) for version in (7, 9, 11, 12)),
    Request(
        "produce out of order",
        ApiKey.PRODUCE,
        11,
        lambda producer, producer_id, epoch: produce_request(
            producer, producer_id, epoch, sequence=producer.sequence + 5
        ),
    ),
)


def errors_in(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        own = {str(each) for name, each in value.items() if name.endswith("error_code")}
        return own.union(*map(errors_in, value.values()))
    return set().union(*map(errors_in, value)) if isinstance(value, list) else set()


_LOG_FIELDS: Final = {"base_offset", "log_append_time", "log_start_offset", "throttle_time"}


def relevant(answer: Any, producer: Producer) -> Any:
    """Return the answer without offsets of the log, and with the producer id relative to `producer`."""
    if isinstance(answer, list):
        return [relevant(item, producer) for item in answer]
    if not isinstance(answer, Mapping):
        return answer
    named = {producer.producer_id: "its own", -1: "none"}
    return {
        name: named.get(value, "another") if name == "producer_id" else relevant(value, producer)
        for name, value in answer.items()
        if name not in _LOG_FIELDS
    }
