"""Ask a leader for the bounds of its log, with ListOffsets as a follower."""

from typing import Final

from headrace.client.link import Link
from headrace.errors import ErrorCode
from headrace.types import TopicPartition

_VERSION: Final = 9
_LATEST: Final = -1
_EARLIEST: Final = -2


class OffsetsRefusedError(Exception):
    """The leader answered with an error."""


async def leader_offset(
    link: Link, replica_id: int, topic_partition: TopicPartition, leader_epoch: int, *, earliest: bool
) -> int:
    """Return the log start offset or the log end offset of the leader. Raises LinkError, OffsetsRefusedError."""
    # Imported late: needed only after an unclean election, or by a follower that was away for long.
    from kio.schema.list_offsets.v9 import request as schema
    from kio.schema.list_offsets.v9.response import ListOffsetsResponse
    from kio.schema.types import BrokerId, TopicName
    from kio.static.primitive import i8, i32, i64

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
    reply = await link.call(message, _VERSION, ListOffsetsResponse)
    answers = [answer for answers in reply.topics for answer in answers.partitions]
    if len(answers) != 1:
        raise OffsetsRefusedError(f"the leader answered for {len(answers)} partitions instead of one")
    if answers[0].error_code is not ErrorCode.none:
        raise OffsetsRefusedError(answers[0].error_code.name)
    return answers[0].offset
