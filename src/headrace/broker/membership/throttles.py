"""Apply the settings of topics to a throttle of replication."""

import logging
from collections.abc import Mapping

from headrace.replication.throttle import ReplicationThrottle

log = logging.getLogger(__name__)


def configure_throttle(
    throttle: ReplicationThrottle, setting: str, topics: Mapping[str, Mapping[str, str]], broker_id: int
) -> None:
    """Throttle the replicas of `topics` on this broker that `setting` lists."""
    for topic, values in topics.items():
        ignored = throttle.configure(topic, values.get(setting, ""), broker_id)
        if ignored:
            log.warning(
                "%s of topic %s has entries that are not partition:broker, such as %.50r. They have no effect.",
                setting,
                topic,
                ignored[0],
            )
