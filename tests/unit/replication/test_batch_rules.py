"""Topic settings applied to batches, on the event loop or ahead of it in a thread."""

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.batch_rules import PreparedBatch, RecordsRefusedError, accept
from headrace.storage.log.config import LogConfig
from headrace.wire import batch as rb
from headrace.wire.compression import Codec
from headrace.wire.records import RecordData, build_batch, iter_records

NOW = 1_700_000_000_000
DAY = 86_400_000


def batch_claiming(
    max_timestamp: int, codec: Codec = Codec.NONE, times: tuple[int, ...] = (NOW, NOW + 7, NOW + 3)
) -> bytes:
    batch = build_batch([RecordData(b"k", b"v", time) for time in times], codec=codec)
    out = bytearray(batch)
    out[: rb.HEADER_SIZE] = rb.pack_header(rb.parse_header(batch)._replace(max_timestamp=max_timestamp))
    rb.seal(out)
    return bytes(out)


def refusal(records: bytes | PreparedBatch, config: LogConfig) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        accept(records, config, NOW)
    return caught.value


def test_the_maximum_timestamp_is_computed_from_the_records() -> None:
    for codec, compression_type in (
        (Codec.NONE, "producer"),
        (Codec.GZIP, "producer"),
        (Codec.NONE, "zstd"),
        (Codec.SNAPPY, "zstd"),
        (Codec.ZSTD, "uncompressed"),
    ):
        for claimed in (NOW - DAY, NOW + DAY, -1):
            batch = batch_claiming(claimed, codec)
            header, stored, append_time = accept(batch, LogConfig(compression_type=compression_type), NOW)
            assert header == rb.parse_header(stored)
            assert (header.max_timestamp, append_time) == (NOW + 7, -1), (codec, compression_type, claimed)
            assert rb.batch_crc_ok(stored, 0, len(stored))
            assert list(iter_records(stored)) == list(iter_records(batch))


def test_a_valid_batch_is_not_copied() -> None:
    batch = batch_claiming(NOW + 7)
    for config in (LogConfig(), LogConfig(cleanup_policy=frozenset({"compact"})), LogConfig(compression_type="none")):
        assert accept(batch, config, NOW).batch is batch


def test_timestamps_of_the_records_are_checked() -> None:
    config = LogConfig(message_timestamp_before_max_ms=DAY)
    error = refusal(batch_claiming(NOW, times=(NOW, NOW + DAY, NOW - 2 * DAY, -1)), config)
    assert isinstance(error, RecordsRefusedError)
    assert error.code is ErrorCode.invalid_timestamp
    assert [place for place, _ in error.records] == [1, 2]
    accept(batch_claiming(NOW + DAY), config, NOW)
    accept(batch_claiming(NOW, times=(-1, -1)), config, NOW)
    assert refusal(batch_claiming(NOW, times=(NOW, -5)), config).code is ErrorCode.invalid_timestamp
    accept(batch_claiming(NOW, times=(NOW, -5)), LogConfig(), NOW)


def test_an_error_names_at_most_a_thousand_records() -> None:
    compacted = LogConfig(cleanup_policy=frozenset({"compact"}))
    for count, codec, listed in ((1500, Codec.GZIP, 1000), (10_001, Codec.NONE, 0)):
        records = [RecordData(b"k" if count > 1500 else None, None, NOW)] * (count - 1) + [RecordData(None, None, NOW)]
        error = refusal(build_batch(records, codec=codec), compacted)
        assert isinstance(error, RecordsRefusedError)
        assert error.code is ErrorCode.invalid_record
        assert len(error.records) == listed


def test_the_size_is_checked_again_after_recompression() -> None:
    batch = build_batch([RecordData(b"k", bytes(100_000), NOW)], codec=Codec.ZSTD)
    for target in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        config = LogConfig(compression_type=target, max_message_bytes=len(batch))
        if target != "zstd":
            assert refusal(batch, config).code is ErrorCode.message_too_large, target
            prepared = PreparedBatch(batch)
            prepared.prepare(config, NOW)
            assert refusal(prepared, config).code is ErrorCode.message_too_large, target
        header, stored, _ = accept(batch, LogConfig(compression_type=target, max_message_bytes=200_000), NOW)
        assert header.codec == Codec["NONE" if target == "uncompressed" else target.upper()]
        assert list(iter_records(stored)) == list(iter_records(batch))


def test_a_prepared_batch_is_valid_only_for_the_same_settings() -> None:
    config = LogConfig(compression_type="lz4")
    prepared = PreparedBatch(batch_claiming(NOW, Codec.GZIP))
    prepared.prepare(config, NOW)
    accepted = accept(prepared, config, NOW + 5)
    assert accepted is prepared.accepted
    assert accept(prepared, LogConfig(compression_type="lz4"), NOW) is accepted
    assert refusal(prepared, LogConfig()).code is ErrorCode.request_timed_out


def test_an_abandoned_batch_is_not_prepared() -> None:
    prepared = PreparedBatch(batch_claiming(NOW, Codec.GZIP))
    prepared.is_abandoned = True
    prepared.prepare(LogConfig(), NOW)
    assert refusal(prepared, LogConfig()).code is ErrorCode.request_timed_out
