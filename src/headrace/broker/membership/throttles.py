"""Apply topics' lists of throttled replicas to a replication throttle."""

import logging
from collections.abc import Mapping

from headrace.replication.throttle import ReplicationThrottle

log = logging.getLogger(__name__)


def configure_throttle(
    throttle: ReplicationThrottle, setting: str, topics: Mapping[str, Mapping[str, str]], broker_id: int
) -> None:
    """Throttle the replicas on this broker that the topics list in `setting`. Log entries that cannot be parsed."""
    for topic, values in topics.items():
        ignored = throttle.configure(topic, values.get(setting, ""), broker_id)
        if ignored:
            log.warning(
                "%s of topic %s has entries that are not partition:broker, such as %.50r. They are ignored."
                " Correct the setting",
                setting,
                topic,
                ignored[0],
            )
