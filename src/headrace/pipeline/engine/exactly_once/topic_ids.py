"""Detect source topics that were deleted and re-created. Spark itself does not detect this.

Offsets of the old topic are meaningless in the new one: a query that continued would skip the new topic's beginning.
"""

from collections.abc import Collection, Mapping

from headrace.pipeline.errors import PipelineError, TemporaryError


class TopicChangedError(PipelineError):
    """A source topic has been re-created since the job read it."""


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

    Raises TopicChangedError if a topic's id differs from the stored one. Raises TemporaryError if a topic is unknown,
    because brokers that have just started may not know topics that exist.
    """
    for topic, old in stored.items():
        new = current.get(topic)
        if new == old:
            continue
        read = f"job {job} has read topic {topic} with id {old}, but"
        restore = f"restore the topic with id {old}"
        run = f"run the job with --accept-new-topic {topic}"
        if new is None:
            raise TemporaryError(
                f"{read} the brokers do not know the topic. If it was deleted, {restore}, or create it again and {run}"
            )
        raise TopicChangedError(
            f"{read} the topic was created again with id {new}. To keep what was read from the old topic, and read "
            f"the new one from its beginning, {run}. Or {restore} and start the job again."
        )
    return {**stored, **current}
