"""The maximum timestamp of batches with right and wrong headers, and the bounds of timestamps."""

import itertools
import time

import pytest

from headrace.wire import batch as rb
from headrace.wire.apis import ApiKey
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, build_batch
from tests.parity.both import Both, Message, Names
from tests.parity.records import Want, fetch, produce

NOW = round(time.time() * 1000)
HOUR = 3_600_000
DAY = 24 * HOUR
TIMES = {
    "now": [NOW, NOW + 1, NOW + 2],
    "descending": [NOW, NOW - 5, NOW - 10],
    "none": [-1, -1, -1],
    "some": [-1, NOW, -1],
    "negative": [NOW, -5, 3],
    "only negative": [-5, -7, -6],
    "a day old": [NOW - DAY, NOW, NOW],
    "a day ahead": [NOW, NOW + DAY, NOW],
    "minimum": [-(2**62), NOW],
    "wrapped": [-(2**62), 2**62 + NOW, -(2**62) + 1],
}
HEADERS = {"unchanged": None, "a day old": NOW - DAY, "a day ahead": NOW + DAY, "none": -1, "negative": -9}


def batch_of(times: list[int], max_timestamp: int | None, codec: Codec = Codec.NONE, attributes: int = 0) -> bytes:
    batch = build_batch(
        [RecordData(b"k%d" % place, b"v", each) for place, each in enumerate(times)], codec=codec, attributes=attributes
    )
    if max_timestamp is None:
        return batch
    out = bytearray(batch)
    out[: rb.HEADER_SIZE] = rb.pack_header(rb.parse_header(batch)._replace(max_timestamp=max_timestamp))
    rb.seal(out)
    return bytes(out)


def newest(topic: str, partition: int) -> Message:
    """Return a ListOffsets request for the maximum timestamp."""
    partitions = [{"partition_index": partition, "timestamp": -3}]
    topics = [{"name": topic, "partitions": partitions}]
    return {"replica_id": -1, "isolation_level": 0, "timeout": 1000, "topics": topics}


@pytest.mark.parametrize(
    ("codec", "config"),
    [
        (Codec.NONE, ""),
        (Codec.NONE, "message.timestamp.before.max.ms=3600000"),
        (Codec.NONE, "cleanup.policy=compact"),
        (Codec.GZIP, ""),
    ],
)
def test_the_maximum_timestamp_is_that_of_the_records(codec: Codec, config: str, both: Both, name: Names) -> None:
    configs = dict([config.split("=")]) if config else {}
    topic = both.create(name(), len(TIMES) * len(HEADERS), configs=configs)
    for partition, (times, header) in enumerate(itertools.product(TIMES, HEADERS)):
        case = f"{times}, header {header}, {config}"
        batch = batch_of(TIMES[times], HEADERS[header], codec)
        both.ask(ApiKey.PRODUCE, 9, produce(topic, batch, partition=partition), case=case)
        both.ask(ApiKey.FETCH, 12, fetch([Want(topic=topic, partition=partition)], min_bytes=0), case=case)
        both.ask(ApiKey.LIST_OFFSETS, 7, newest(topic, partition), case=case)


@pytest.mark.parametrize("config", ["", "message.timestamp.type=LogAppendTime"])
def test_a_producer_does_not_choose_the_type_of_timestamps(config: str, both: Both, name: Names) -> None:
    configs = dict([config.split("=")]) if config else {}
    headers = {**HEADERS, "now": NOW}
    topic = both.create(name(), len(headers), configs=configs)
    for partition, (header, max_timestamp) in enumerate(headers.items()):
        batch = batch_of([NOW, NOW + 1], max_timestamp, attributes=rb.LOG_APPEND_TIME_FLAG)
        case = f"header {header}, {config}"
        both.ask(ApiKey.PRODUCE, 9, produce(topic, batch, partition=partition), case=case)
        if not config:
            both.ask(ApiKey.FETCH, 12, fetch([Want(topic=topic, partition=partition)]), case=case)
