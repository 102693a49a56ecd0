"""Request the log start and log end offsets of a leader, with ListOffsets as a follower."""

from importlib import import_module
from typing import Any, Final

from headrace.client.link import Link
from headrace.errors import ErrorCode
from headrace.types import TopicPartition

OFFSETS_VERSION: Final = 9
"""The version of ListOffsets that Kafka 3.9's brokers send each other; 7 and 8 have the same fields."""
_LATEST: Final = -1
_EARLIEST: Final = -2


class OffsetsRefusedError(Exception):
    """The leader answered with an error."""


async def leader_offset(
    link: Link,
    replica_id: int,
    topic_partition: TopicPartition,
    leader_epoch: int,
    *,
    earliest: bool,
    version: int = OFFSETS_VERSION,
) -> int:
    """Return the log start offset or the log end offset of the leader. Raises LinkError, OffsetsRefusedError."""
    # Imported late: needed only after an unclean election, or after a follower was down for a long time.
    from kio.schema.types import BrokerId, TopicName
    from kio.static.primitive import i8, i32, i64

    schema: Any = import_module(f"kio.schema.list_offsets.v{version}.request")
    replies: Any = import_module(f"kio.schema.list_offsets.v{version}.response")
    topic, partition = topic_partition
    wanted = schema.ListOffsetsPartition(
        partition_index=i32(partition),
        current_leader_epoch=i32(leader_epoch),
        timestamp=i64(_EARLIEST if earliest else _LATEST),
    )
    message = schema.ListOffsetsRequest(
        replica_id=BrokerId(replica_id),
        isolation_level=i8(0),
        topics=(schema.ListOffsetsTopic(name=TopicName(topic), partitions=(wanted,)),),
    )
    reply = await link.call(message, version, replies.ListOffsetsResponse)
    answers = [answer for answers in reply.topics for answer in answers.partitions]
    if len(answers) != 1:
        raise OffsetsRefusedError(f"the leader answered for {len(answers)} partitions instead of one")
    if answers[0].error_code is not ErrorCode.none:
        raise OffsetsRefusedError(answers[0].error_code.name)
    offset: int = answers[0].offset
    return offset
