"""Detect source topics that were deleted and re-created. Spark itself does not detect this.

Offsets of the old topic are meaningless in the new one: a query that continued would skip the new topic's beginning.
"""

from collections.abc import Collection, Mapping

from headrace.pipeline.errors import PipelineError


class TopicChangedError(PipelineError):
    """A source topic has been deleted or re-created since the job read it."""


class Accepted:
    """Re-created topics that the job may read from the beginning, because the user accepted that."""

    def __init__(self, topics: Collection[str]) -> None:
        self._ids: dict[str, str | None] = dict.fromkeys(topics)

    def covers(self, topic: str, topic_id: str) -> bool:
        """Return True if the user has accepted the topic with this id; the first call fixes the id.

        A topic that is re-created once more must be accepted again.
        """
        if topic not in self._ids:
            return False
        if self._ids[topic] is None:
            self._ids[topic] = topic_id
        return self._ids[topic] == topic_id

    def created_again(self, stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
        """Return the accepted topics whose ids have changed."""
        changed = [topic for topic, old in stored.items() if current.get(topic, old) != old]
        return [topic for topic in changed if self.covers(topic, current[topic])]


def check(stored: Mapping[str, str], current: Mapping[str, str], *, job: str) -> dict[str, str]:
    """Return the ids of all topics that the job has read, to store them. Both mappings are ids by topic (KIP-516).

    Raises TopicChangedError if a topic's id differs from the stored one, or if the topic no longer exists.
    """
    for topic, old in stored.items():
        new = current.get(topic)
        if new == old:
            continue
        state = f"was created again with id {new}" if new else "no longer exists"
        go_on = (
            f"Run the job with --accept-new-topic {topic} to keep what was read from the old topic and to read the new "
            "one from its beginning"
            if new
            else f"Create the topic and run the job with --accept-new-topic {topic}"
        )
        raise TopicChangedError(
            f"job {job} has read topic {topic} with id {old}, but the topic {state}. {go_on}. Or restore the topic "
            f"with id {old} and start the job again."
        )
    return {**stored, **current}
