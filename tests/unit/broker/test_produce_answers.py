"""Replies to Produce, and the topics that a run of requests looks up."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.produce_answers import Outcome, failed, name_bytes, replies_to
from headrace.broker.large_batches import MAX_COMPRESSED_AT_ONCE, LargeBatches
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.batch_rules import RecordsRefusedError
from headrace.server.context import RawReply, RequestContext
from headrace.server.frames import InvalidRequestError
from headrace.storage.log.config import LogConfig
from headrace.wire.apis import ApiKey, response_reader
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import client_at, versions_around


def context(version: int) -> RequestContext:
    return RequestContext(int(ApiKey.PRODUCE), version, 1, "me", client_at())


def test_the_reply_contains_successes_and_errors() -> None:
    error = RecordsRefusedError(ErrorCode.invalid_record, "no key", [(3, "no key either")])
    outcomes = [Outcome(4, 0, 70, -1, 5), failed(6, error, 9), Outcome(7, 0, 80, 1_000, 0)]
    for version in versions_around(ApiKey.PRODUCE, 5, 8, 9, 13):
        name = bytes(16) if version >= 13 else b"\x02t" if version >= 9 else b"\0\1t"
        [reply] = replies_to([(context(version), -1)], [[(name, outcomes)]], lambda _: "t")
        assert isinstance(reply, RawReply)
        [part] = reply.parts
        assert isinstance(part, bytearray)
        response: Any
        response, end = response_reader(ApiKey.PRODUCE, version)(bytes(part), 0)
        assert end == len(part), version
        [topic] = response.responses
        partitions = topic.partition_responses
        read = [(p.index, p.error_code, p.base_offset) for p in partitions]
        assert read == [(4, 0, 70), (6, 87, -1), (7, 0, 80)], version
        if version >= 5:
            assert [p.log_start_offset for p in partitions] == [5, 9, 0], version
        if version >= 8:
            assert [p.error_message for p in partitions] == [None, str(error), None], version
            named = [[(r.batch_index, r.batch_index_error_message) for r in p.record_errors] for p in partitions]
            assert named == [[], [(3, "no key either")], []], version


@pytest.mark.parametrize("version", [3, 9, 13])
def test_the_error_of_a_request_without_acks_names_the_first_failed_partitions(version: int) -> None:
    def fails(topic: str, *partitions: int) -> tuple[bytes, list[Outcome]]:
        error = KafkaError(ErrorCode.not_leader_or_follower, "another broker leads it")
        asked = SimpleNamespace(name=topic, topic_id=UUID(int=len(topic)))
        return name_bytes(asked, version), [Outcome(0, 0), *(failed(partition, error) for partition in partitions)]

    names: dict[UUID | None, str] = {UUID(int=3): "one", UUID(int=200): "l" * 200}

    def error_of(*results: tuple[bytes, list[Outcome]]) -> str:
        [reply] = replies_to([(context(version), 0)], [list(results)], names.get)
        assert isinstance(reply, InvalidRequestError)
        return str(reply)

    assert error_of(fails("one", 4)) == "a Produce with acks=0 failed for one-4: another broker leads it"
    long = "l" * 200
    several = error_of(fails("one", 1), fails(long, *range(1, 1003)))
    assert several == (
        f"a Produce with acks=0 failed for one-1, {long}-1, {long}-2 and 1,000 more: another broker leads it"
    )
    too_large = failed(9, KafkaError(ErrorCode.message_too_large, "a batch is too large"))
    first = fails("one", 4)
    first[1].append(too_large)
    assert error_of(first) == "a Produce with acks=0 failed for one-4: another broker leads it"
    unknown = "AAAAAAAAAAAAAAAAAAAAAw" if version == 13 else r"'a\n\x1b'"
    names.clear()
    assert error_of(fails("a\n\x1b", 0)) == f"a Produce with acks=0 failed for {unknown}-0: another broker leads it"


@pytest.mark.parametrize("version", [9, 13])
def test_a_run_looks_up_a_topic_once_unless_its_first_partition_is_missing(version: int) -> None:
    looked_up: list[str] = []
    configs = {"plain": LogConfig(), "packed": LogConfig(compression_type="zstd")}

    def config_of(_: RequestContext, topic: Any) -> LogConfig | None:
        looked_up.append(topic.label)
        return configs.get(topic.label) if topic.partition_data[0].index == 0 else None

    def request(label: str, index: int = 0) -> tuple[RequestContext, Any]:
        names = {"name": label} if version < 13 else {"topic_id": UUID(int=len(label))}
        batch = build_batch([RecordData(None, bytes(MAX_COMPRESSED_AT_ONCE // 2), 0)])
        data = SimpleNamespace(index=index, records=batch)
        topic = SimpleNamespace(label=label, partition_data=[data], **names)
        return context(version), SimpleNamespace(topic_data=[topic])

    batches = LargeBatches(config_of)
    assert batches.select([request("plain", 1), request("plain"), request("plain"), request("plain", 1)]) == ([], {})
    assert looked_up == ["plain", "plain"]
    large, _ = batches.select([request("plain"), request("plain"), request("packed"), request("packed")])
    assert [(item.place, item.config) for item in large] == [((3, 0, 0), configs["packed"])]
