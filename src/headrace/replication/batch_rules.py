"""Apply a topic's config to a batch: keys in compacted topics, bounds of timestamps, codec, size.

Runs on the event loop, or in a thread for large batches. Follows Kafka's LogValidator: the maximum timestamp is that of
the records, whatever the header contains.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.log.config import LogConfig
from headrace.types import Buffer, new_tuple
from headrace.wire.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    parse_header,
    with_log_append_time,
    with_max_timestamp,
)
from headrace.wire.compression import Codec, codec_named
from headrace.wire.record_checks import NO_TIMESTAMP
from headrace.wire.records import recompress
from headrace.wire.validation import ValidBatch, each_record, unpacked, validate_produced

_MOST_NAMED: Final = 1000
"""Maximum number of records that an error names."""
_MOST_SEARCHED: Final = 10_000
"""Maximum number of records to search for invalid ones: Python is slow at this."""
_SIGN: Final = 1 << 63


class RecordsRefusedError(KafkaError):
    """A batch was refused because some of its records are invalid (KIP-467).

    `records` has the indexes and reasons of up to 1,000 invalid ones among the first 10,000 records.
    """

    def __init__(self, code: ErrorCode, message: str, records: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = records


class Accepted(NamedTuple):
    """A batch to write, with no offset assigned; `append_time` in ms, -1 if the producer's timestamps are kept."""

    header: BatchHeader
    batch: Buffer
    append_time: int


class PreparedBatch:
    """A batch that was decompressed (`body`) or completely checked (`prepare`) before it is appended."""

    __slots__ = ("accepted", "body", "config", "data", "error", "is_abandoned")

    def __init__(self, data: bytes, *, body: bytes | None = None) -> None:
        self.data = data
        self.body = body
        self.config: LogConfig | None = None
        """The config under which it was accepted or refused."""
        self.accepted: Accepted | None = None
        self.error: KafkaError | None = None
        self.is_abandoned = False
        """True if the client has disconnected: the thread may stop."""

    def __len__(self) -> int:
        return len(self.data)

    def prepare(self, config: LogConfig, now_ms: int) -> None:
        """Check the batch, and keep the result or the error. Thread-safe."""
        self.config = config
        try:
            valid = validate_produced(self.data, config.max_message_bytes, None, self.unpack)
            self.accepted = _under_rules(valid, config, now_ms, internal=False)
        except KafkaError as error:
            # Without traceback and cause, which would keep the decompressed batch in memory.
            self.error = error.with_traceback(None)
            self.error.__cause__ = self.error.__context__ = None

    def unpack(self, codec: int, data: Buffer) -> Iterator[bytes]:
        """Decompress the records in pieces."""
        for piece in unpacked(codec, data):
            if self.is_abandoned:
                raise KafkaError(ErrorCode.request_timed_out, "the client has disconnected")
            yield piece

    def refuse(self, error: KafkaError) -> None:
        """Make `accept` raise `error`."""
        self.error = error


def accept(records: bytes | PreparedBatch, config: LogConfig, now_ms: int, *, internal: bool = False) -> Accepted:
    """Return the batch as the topic requires it.

    Raises KafkaError: the errors of `validate_produced`; invalid_record for records without keys in a compacted topic,
    unless `internal`; invalid_timestamp; message_too_large after recompression; request_timed_out if the config has
    changed since the batch was prepared.
    """
    if type(records) is PreparedBatch:
        if records.error is not None:
            raise records.error
        if records.accepted is not None:
            if records.config != config:
                raise KafkaError(
                    ErrorCode.request_timed_out,
                    "the topic's config changed while the batch was being checked; retry",
                )
            return records.accepted
        valid = validate_produced(records.data, config.max_message_bytes, records.body)
    else:
        valid = validate_produced(records, config.max_message_bytes)  # type: ignore[arg-type]  # these are bytes
    header, data, walk, _, _ = valid
    # nearly all batches; `_under_rules` would return the same, more slowly
    if (
        config.stores_batches_as_sent
        and header.max_timestamp == walk.largest <= now_ms + config.message_timestamp_after_max_ms
        and walk.smallest >= now_ms - config.message_timestamp_before_max_ms
        and not header.attributes & LOG_APPEND_TIME_FLAG
        and (not walk.keyless or internal or not config.compacts)
    ):
        return new_tuple(Accepted, (header, data, -1))
    return _under_rules(valid, config, now_ms, internal=internal)


def _under_rules(valid: ValidBatch, config: LogConfig, now_ms: int, *, internal: bool) -> Accepted:
    header, data, walk, _, _ = valid
    if config.compacts and walk.keyless and not internal:
        raise _keyless(valid)
    is_append_time = config.message_timestamp_type == "LogAppendTime"
    _check_timestamps(valid, config, now_ms, is_append_time=is_append_time)
    # As in Kafka, records of a batch marked LogAppendTime get the header's timestamp, but the type CreateTime.
    is_stamped = header.attributes & LOG_APPEND_TIME_FLAG
    largest = max(header.max_timestamp, NO_TIMESTAMP) if is_stamped else walk.largest
    codec = header.codec if config.compression_type == "producer" else codec_named(config.compression_type)
    batch: Buffer = data
    if codec != header.codec:
        header = header._replace(
            attributes=header.attributes & ~LOG_APPEND_TIME_FLAG,
            max_timestamp=largest,
        )
        batch = recompress(header, _pieces(valid), Codec(codec), _level(config, Codec(codec)), config.max_message_bytes)
        header = parse_header(batch)
    if is_append_time:
        batch = with_log_append_time(header, batch, 0, now_ms)
        return Accepted(parse_header(batch), batch, now_ms)
    if header.max_timestamp != largest or is_stamped:
        batch = with_max_timestamp(header, batch, largest)
        header = parse_header(batch)
    return Accepted(header, batch, -1)


def _level(config: LogConfig, codec: Codec) -> int | None:
    return {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }.get(codec)


def _pieces(valid: ValidBatch) -> Iterable[bytes]:
    header, data, _, body, unpack = valid
    if body is not None:
        return (body,)
    return (data[HEADER_SIZE:],) if header.codec == Codec.NONE else unpack(header.codec, data)


def _keyless(valid: ValidBatch) -> RecordsRefusedError:
    places = (place for place, has_key, _ in _first_records(valid) if not has_key)
    return RecordsRefusedError(
        ErrorCode.invalid_record,
        "Compacted topic cannot accept message without key",
        [(place, "Compacted topic cannot accept message without key") for place in islice(places, _MOST_NAMED)],
    )


def _check_timestamps(valid: ValidBatch, config: LogConfig, now_ms: int, *, is_append_time: bool) -> None:
    """Check timestamps against the topic's limits.

    Raises RecordsRefusedError(invalid_timestamp) if a timestamp is outside the range that
    `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms` allow. Also raises it if the producer has
    marked the batch LogAppendTime, and the topic sets append times itself or the batch has no timestamp.
    """
    header, _, walk, _, _ = valid
    if header.attributes & LOG_APPEND_TIME_FLAG:
        # The header's timestamp applies to all records.
        if is_append_time or header.max_timestamp == NO_TIMESTAMP:
            raise _wrong_times("a producer may not set the timestamp type to LogAppendTime", header.record_count)
        smallest = largest = header.max_timestamp
    else:
        smallest, largest = walk.smallest, walk.largest
    if is_append_time:
        return
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    if smallest >= earliest and largest <= latest:
        return
    rule = (
        f"message.timestamp.before.max.ms={config.message_timestamp_before_max_ms} and"
        f" message.timestamp.after.max.ms={config.message_timestamp_after_max_ms} allow {earliest} to {latest}"
    )
    if header.attributes & LOG_APPEND_TIME_FLAG:
        raise _wrong_times(f"the timestamp is {largest}; {rule}", header.record_count)
    wrong = list(islice(_out_of_range(valid, config, now_ms, rule), _MOST_NAMED))
    if wrong or header.record_count > _MOST_SEARCHED:
        raise RecordsRefusedError(ErrorCode.invalid_timestamp, f"timestamps are out of range; {rule}", wrong)


def _first_records(valid: ValidBatch) -> Iterator[tuple[int, bool, int]]:
    return islice(each_record(valid.header, _pieces(valid)), _MOST_SEARCHED)


def _wrong_times(reason: str, count: int) -> RecordsRefusedError:
    return RecordsRefusedError(
        ErrorCode.invalid_timestamp, reason, [(place, reason) for place in range(min(count, _MOST_NAMED))]
    )


def _out_of_range(valid: ValidBatch, config: LogConfig, now_ms: int, rule: str) -> Iterator[tuple[int, str]]:
    for place, _, timestamp in _first_records(valid):
        # The difference overflows at 64 bits, as in Kafka.
        age = (now_ms - timestamp + _SIGN) % (2 * _SIGN) - _SIGN
        if timestamp != NO_TIMESTAMP and (
            age > config.message_timestamp_before_max_ms or -_SIGN < age < -config.message_timestamp_after_max_ms
        ):
            yield place, f"the timestamp is {timestamp}; {rule}"
