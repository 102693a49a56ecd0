"""What the settings of a topic ask of a batch: keys where it is compacted, timestamps within bounds, a codec."""

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log_config import LogConfig
from headrace.types import Buffer, TopicPartition
from headrace.wire.batch import BatchHeader, parse_header
from headrace.wire.compression import Codec, codec_named
from headrace.wire.record_checks import all_have_keys
from headrace.wire.records import recompress, records_of, uncompressed_body
from headrace.wire.validation import PreparedBatch


class RecordsRefusedError(KafkaError):
    """Some records of a batch break a rule of the topic, so the whole batch is refused (KIP-467).

    `records` has the place in the batch and the reason of each.
    """

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = records


def with_codec(config: LogConfig, header: BatchHeader, records: bytes) -> tuple[bytes, BatchHeader]:
    """The batch under the topic's `compression.type`, with its header."""
    codec = codec_named(config.compression_type)
    if header.codec == codec:
        return records, header
    level = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }.get(codec)
    batch = recompress(header, records, 0, codec, level)
    return batch, parse_header(batch)


def check_keys(topic_partition: TopicPartition, header: BatchHeader, records: bytes) -> None:
    """Raises RecordsRefusedError(invalid_record) where a record of a compacted topic has no key."""
    if type(records) is PreparedBatch and records.all_have_keys:
        return
    body = uncompressed_body(header, records, 0)
    if all_have_keys(body, header.record_count):
        return
    keyless = [place for place, record in enumerate(records_of(header, body)) if record.key is None]
    if keyless:
        why = f"{topic_partition.topic} is compacted and keeps records by key: every record needs one"
        raise RecordsRefusedError(
            ErrorCode.invalid_record, why, [(place, "the record has no key") for place in keyless]
        )


def check_timestamps(config: LogConfig, header: BatchHeader, records: Buffer, now_ms: int) -> None:
    """Raises RecordsRefusedError(invalid_timestamp) outside of `message.timestamp.before.max.ms` and `after.max.ms`."""
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    rule = (
        f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms} and"
        f" message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} allow {earliest} to {latest}"
    )
    wrong = [
        (place, f"the timestamp is {record.timestamp}; {rule}")
        for place, record in enumerate(records_of(header, uncompressed_body(header, records, 0)))
        if record.timestamp >= 0 and not earliest <= record.timestamp <= latest
    ]
    if wrong or header.max_timestamp > latest:
        raise RecordsRefusedError(ErrorCode.invalid_timestamp, f"timestamps are out of range; {rule}", wrong)
