"""The topic settings of Kafka 4.3, with the broker settings that provide their defaults.

Names, types, limits and defaults are Kafka's; see https://kafka.apache.org/documentation/#topicconfigs.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.config.definition import (
    BOOLEAN,
    CODECS,
    DOUBLE,
    GZIP_LEVEL,
    INT,
    LIST,
    LONG,
    MAX_LONG,
    SEGMENT_BYTES,
    STRING,
    Check,
    ConfigError,
    Setting,
    Value,
    at_least,
    between,
    did_you_mean,
    each_of,
    one_of,
    table,
)

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig


THROTTLED_REPLICA: Final = re.compile("([0-9]{1,10}):([0-9]{1,10})")
"""A partition and a broker. Kafka also accepts longer numbers, which no partition and no broker has."""


def _throttled(value: Value) -> bool:
    if not isinstance(value, tuple):
        return False
    if value in ((), ("*",)):
        return True
    return all(THROTTLED_REPLICA.fullmatch(item) for item in value)


THROTTLED_REPLICAS: Final = Check("*, or comma-separated pairs [partition]:[broker]", _throttled)

TOPIC_SETTINGS: Final[dict[str, Setting]] = table(
    Setting(
        "cleanup.policy",
        LIST,
        ("delete",),
        "Policy for old data: `delete` deletes segments by retention time or size, `compact` keeps the last "
        "record of every key, both together do both, and an empty list keeps everything.",
        each_of("compact", "delete"),
        synonyms=("log.cleanup.policy",),
    ),
    Setting(
        "compression.gzip.level",
        INT,
        -1,
        "gzip level if compression.type is gzip; -1 is zlib's default.",
        GZIP_LEVEL,
        synonyms=("compression.gzip.level",),
    ),
    Setting(
        "compression.lz4.level",
        INT,
        9,
        "LZ4 level if compression.type is lz4.",
        between(1, 17),
        synonyms=("compression.lz4.level",),
    ),
    Setting(
        "compression.type",
        STRING,
        "producer",
        "Codec in which batches are stored. `producer` keeps the producer's codec, `uncompressed` stores "
        "plain records; with any other codec, the broker recompresses batches that use a different one.",
        one_of(*CODECS),
        synonyms=("compression.type",),
    ),
    Setting(
        "compression.zstd.level",
        INT,
        3,
        "Zstandard level if compression.type is zstd.",
        between(-131072, 22),
        synonyms=("compression.zstd.level",),
    ),
    Setting(
        "delete.retention.ms",
        LONG,
        86_400_000,
        "Time in ms that a tombstone of a compacted topic stays readable after its first compaction; a consumer that "
        "starts at offset 0 has this long to see every deletion.",
        at_least(0),
        synonyms=("log.cleaner.delete.retention.ms",),
    ),
    Setting(
        "file.delete.delay.ms",
        LONG,
        60_000,
        "Time in ms before the files of a deleted segment are removed from the disk.",
        at_least(0),
        synonyms=("log.segment.delete.delay.ms",),
    ),
    Setting(
        "flush.messages",
        LONG,
        MAX_LONG,
        "Number of records written to a partition between two fsyncs. 1 makes every append durable before it "
        "is acknowledged; the default leaves writeback to the operating system.",
        at_least(1),
        synonyms=("log.flush.interval.messages",),
    ),
    Setting(
        "flush.ms",
        LONG,
        MAX_LONG,
        "Maximum time in ms that a record waits for an fsync.",
        at_least(0),
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    Setting(
        "follower.replication.throttled.replicas",
        LIST,
        (),
        "Replicas to throttle while they follow, as partition:broker pairs, or * for all.",
        THROTTLED_REPLICAS,
    ),
    Setting(
        "index.interval.bytes",
        INT,
        4096,
        "Bytes of log between two entries of the offset index. Smaller values make seeks more exact and "
        "indexes larger.",
        at_least(0),
        synonyms=("log.index.interval.bytes",),
    ),
    Setting(
        "leader.replication.throttled.replicas",
        LIST,
        (),
        "Replicas to throttle while they lead, as partition:broker pairs, or * for all.",
        THROTTLED_REPLICAS,
    ),
    Setting(
        "local.retention.bytes",
        LONG,
        -2,
        "Local size limit of a tiered topic in bytes; -2 means retention.bytes.",
        at_least(-2),
        synonyms=("log.local.retention.bytes",),
    ),
    Setting(
        "local.retention.ms",
        LONG,
        -2,
        "Local retention time of a tiered topic in ms; -2 means retention.ms.",
        at_least(-2),
        synonyms=("log.local.retention.ms",),
    ),
    Setting(
        "max.compaction.lag.ms",
        LONG,
        MAX_LONG,
        "Maximum time in ms before a record of a compacted topic becomes eligible for compaction.",
        at_least(1),
        synonyms=("log.cleaner.max.compaction.lag.ms",),
    ),
    Setting(
        "max.message.bytes",
        INT,
        1_048_588,
        "Maximum size in bytes of a record batch after compression.",
        at_least(0),
        synonyms=("message.max.bytes",),
    ),
    Setting(
        "message.timestamp.after.max.ms",
        LONG,
        3_600_000,
        "Maximum time in ms by which a CreateTime timestamp may be later than the broker's clock.",
        at_least(0),
        synonyms=("log.message.timestamp.after.max.ms",),
    ),
    Setting(
        "message.timestamp.before.max.ms",
        LONG,
        MAX_LONG,
        "Maximum time in ms by which a CreateTime timestamp may be earlier than the broker's clock.",
        at_least(0),
        synonyms=("log.message.timestamp.before.max.ms",),
    ),
    Setting(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Timestamp of records: CreateTime (the producer's) or LogAppendTime (the broker's, at append).",
        one_of("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
    ),
    Setting(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        0.5,
        "Minimum uncompacted share of a log before it is compacted.",
        between(0, 1),
        synonyms=("log.cleaner.min.cleanable.ratio",),
    ),
    Setting(
        "min.compaction.lag.ms",
        LONG,
        0,
        "Minimum time in ms that a record stays uncompacted.",
        at_least(0),
        synonyms=("log.cleaner.min.compaction.lag.ms",),
    ),
    Setting(
        "min.insync.replicas",
        INT,
        1,
        "Minimum number of in-sync replicas, including the leader, for a write with acks=all.",
        at_least(1),
        synonyms=("min.insync.replicas",),
    ),
    Setting(
        "preallocate",
        BOOLEAN,
        False,
        "Allocate the full size of a new segment on disk.",
        synonyms=("log.preallocate",),
    ),
    Setting("remote.log.copy.disable", BOOLEAN, False, "Stop copying segments of a topic to tiered storage."),
    Setting(
        "remote.log.delete.on.disable",
        BOOLEAN,
        False,
        "Delete a topic's data in tiered storage when remote.storage.enable is set to false.",
    ),
    Setting(
        "remote.storage.enable",
        BOOLEAN,
        False,
        "Move old segments to tiered storage, which Headrace does not support: only false is allowed.",
        Check("false (tiered storage is not supported)", lambda v: v is False),
    ),
    Setting(
        "retention.bytes",
        LONG,
        -1,
        "Maximum size in bytes of a partition, above which its oldest segments are deleted; -1 for no limit.",
        synonyms=("log.retention.bytes",),
    ),
    Setting(
        "retention.ms",
        LONG,
        604_800_000,
        "Maximum age in ms of a segment under the `delete` policy; -1 for no time limit.",
        at_least(-1),
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    Setting(
        "segment.bytes",
        INT,
        1_073_741_824,
        "Maximum size of a segment in bytes; retention and compaction work on whole segments.",
        SEGMENT_BYTES,
        synonyms=("log.segment.bytes",),
    ),
    Setting(
        "segment.index.bytes",
        INT,
        10_485_760,
        "Maximum size in bytes of a segment's offset index and of its time index.",
        at_least(4),
        synonyms=("log.index.size.max.bytes",),
    ),
    Setting(
        "segment.jitter.ms",
        LONG,
        0,
        "Maximum random time in ms subtracted from segment.ms, so that partitions do not all roll at once.",
        at_least(0),
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    Setting(
        "segment.ms",
        LONG,
        604_800_000,
        "Maximum age in ms of an active segment; closed segments can be deleted or compacted.",
        at_least(1),
        synonyms=("log.roll.ms", "log.roll.hours"),
    ),
    Setting(
        "unclean.leader.election.enable",
        BOOLEAN,
        False,
        "Allow a replica that is not in sync to become leader if no in-sync replica is alive; acknowledged records may "
        "be lost.",
        synonyms=("unclean.leader.election.enable",),
    ),
    Setting(
        "internal.segment.bytes",
        INT,
        None,
        "segment.bytes without its lower limit, for tests.",
        at_least(1),
        hidden=True,
    ),
)
_MS: Final = {"hours": 3_600_000, "minutes": 60_000}
"""Milliseconds per unit, by the last part of a broker setting's name."""


def parse_topic_overrides(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Parse a topic's own settings.

    Raises ConfigError for an unknown key, an invalid value, or values that contradict each other.
    """
    values: dict[str, Value] = {}
    for key, text in overrides.items():
        setting = TOPIC_SETTINGS.get(key)
        if setting is None:
            raise ConfigError(key, None, f"Unknown topic config name: {key}.{did_you_mean(key, TOPIC_SETTINGS)}")
        values[key] = setting.parse(text)
    low, high = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", MAX_LONG)
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise ConfigError("min.compaction.lag.ms", low, f"must be at most max.compaction.lag.ms, which is {high}")
    return values


def topic_values(broker: "BrokerConfig", overrides: Mapping[str, str]) -> dict[str, Value]:
    """Return all settings of a topic with `overrides` on `broker`, by attribute name (`retention_ms`).

    The overrides were checked when they were set, perhaps by another version of Kafka: numbers outside the limits are
    accepted, and unknown or unreadable overrides are ignored.
    """
    own = _readable(overrides)
    values = {
        setting.attribute: own[name] if name in own else inherited(broker, setting)
        for name, setting in TOPIC_SETTINGS.items()
        if not setting.hidden
    }
    if "internal.segment.bytes" in own:
        values["segment_bytes"] = own["internal.segment.bytes"]
    return values


def topic_value(broker: "BrokerConfig", overrides: Mapping[str, str], name: str) -> Value:
    """Return a single setting of a topic, by its name in Kafka, like `topic_values`."""
    own = _readable({name: overrides[name]}) if name in overrides else {}
    return own[name] if name in own else inherited(broker, TOPIC_SETTINGS[name])


def _readable(overrides: Mapping[str, str]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, text in overrides.items():
        setting = TOPIC_SETTINGS.get(key)
        if setting is not None:
            with suppress(ConfigError):
                values[key] = setting.parse(text, any_number=True)
    return values


def inherited(broker: "BrokerConfig", setting: Setting) -> Value:
    """Return the value of the first broker synonym that has one, or the default. Times are converted to ms."""
    for synonym in setting.synonyms:
        value = broker.value(synonym)
        if value is not None:
            unit = _MS.get(synonym.rpartition(".")[2], 1)
            return value * unit if isinstance(value, int) and unit != 1 and value >= 0 else value
    return setting.default
