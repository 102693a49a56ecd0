"""Loading pauses for other requests, whatever the log contains."""

from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state.shard import GroupShard
from headrace.coordinator.runtime.loading import load
from headrace.wire.control import Marker, marker_batch
from tests.unit.coordinator.fake_topics import FakeTopics


def test_a_long_run_of_markers_is_loaded_in_steps() -> None:
    markers = marker_batch(Marker.COMMIT, 0, 7, 0, 0) * 500
    steps = list(load(GroupShard(GroupSettings(), FakeTopics()), [markers], lambda: 0, "__consumer_offsets-0"))
    assert steps == [200, 400, 500]
