from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.monitoring.groups.progress import GroupProgress, TopicProgress, from_bytes
from headrace.monitoring.groups.standing import Standing, Trend, combined, total_of

NOW = 1_700_000_000_000


def committed(*offsets: int) -> "array[int]":
    return array("q", offsets)


def standing(**changes: float | None) -> Standing:
    fields: dict[str, float | None] = {
        "partition": 0,
        "committed": 100,
        "start": 0,
        "end": 200,
        "time_ms": NOW - 5000,
        "pace": 30.0,
        "arrival": 10.0,
    }
    return Standing(**{**fields, **changes})  # type: ignore[arg-type]


def test_lag_is_the_number_of_unread_records_and_the_age_of_the_oldest() -> None:
    partitions = {
        "behind": standing(),
        "read to the end": standing(committed=200, time_ms=-1),
        "with timestamps in the future": standing(time_ms=NOW + 9000),
        "offline": standing(end=-1),
    }
    assert {name: (item.lag, item.lag_seconds(NOW)) for name, item in partitions.items()} == {
        "behind": (100, 5.0),
        "read to the end": (0, 0.0),
        "with timestamps in the future": (100, 0.0),
        "offline": (None, None),
    }


def test_the_trend_depends_on_both_rates() -> None:
    expected = {
        (30.0, 10.0): (Trend.CATCHING_UP, 5.0),
        (10.0, 30.0): (Trend.FALLING_BEHIND, None),
        (100.0, 101.0): (Trend.KEEPING_PACE, None),
        (0.0, 10.0): (Trend.STALLED, None),
        (0.0, 0.0): (Trend.STALLED, None),
        (None, 10.0): (Trend.UNKNOWN, None),
    }
    rows = {rates: standing(pace=rates[0], arrival=rates[1]) for rates in expected}
    assert {rates: (row.trend, row.catches_up_in) for rates, row in rows.items()} == expected
    read, offline = standing(committed=200), standing(end=-1)
    assert (read.trend, read.catches_up_in) == (Trend.CAUGHT_UP, 0.0)
    assert (offline.trend, offline.catches_up_in) == (Trend.UNKNOWN, None)


def test_rates_cover_the_last_minute() -> None:
    topic = TopicProgress([0], [1000], NOW)
    group = GroupProgress(committed(0), NOW)
    for seconds in range(15, 181, 15):
        at = NOW + seconds * 1000
        topic.update([0], [1000 + 10 * seconds], at)
        # The group reads 20 records per second for two minutes, then stops.
        position = committed(20 * min(seconds, 120))
        group.update(position, topic)
        group.rates.note(position, at)
    (each,) = group.standings(topic, NOW + 180_000)
    assert each.arrival == 10.0
    assert each.pace == 0.0
    assert each.trend is Trend.STALLED


def test_the_rate_is_unknown_after_one_sample_or_a_reset() -> None:
    topic = TopicProgress([0], [1000], NOW)
    group = GroupProgress(committed(500), NOW)
    assert next(group.standings(topic, NOW)).pace is None
    group.update(committed(100), topic)
    assert next(group.standings(topic, NOW + 15_000)).pace is None


def test_only_new_positions_are_looked_up() -> None:
    topic = TopicProgress([0, 0, 0], [10, 10, 10], NOW)
    group = GroupProgress(committed(4, 10, -1), NOW)
    assert group.update(committed(4, 10, -1), topic) == [(0, 4)]
    group.set_time(0, 4, NOW - 100)
    assert group.update(committed(4, 10, -1), topic) == []
    assert group.update(committed(6, 10, -1), topic) == [(0, 6)]
    # The time of the previous position comes too late.
    group.set_time(0, 4, NOW - 100)
    assert group.times[0] == -1


def test_a_deleted_position_is_looked_up_at_the_log_start() -> None:
    topic = TopicProgress([7], [10], NOW)
    assert GroupProgress(committed(4), NOW).update(committed(4), topic) == [(0, 7)]


def test_a_topic_may_grow() -> None:
    topic = TopicProgress([0], [10], NOW)
    group = GroupProgress(committed(4), NOW)
    topic.update([0, 0], [10, 20], NOW + 1000)
    assert group.update(committed(4, 5), topic) == [(0, 4), (1, 5)]
    assert [item.lag for item in group.standings(topic, NOW + 1000)] == [6, 15]


def test_an_encoded_sample_can_be_read_back() -> None:
    topic = TopicProgress([0, 0], [10, 20], NOW)
    group = GroupProgress(committed(4, -1, 5), NOW)
    group.update(committed(4, -1, 5), topic)
    group.set_time(0, 4, NOW - 100)
    assert [(byte.partition, byte.committed, byte.end, byte.time_ms) for byte in from_bytes(group.as_bytes(topic))] == [
        (0, 4, 10, NOW - 100),
        (2, 5, -1, -1),
    ]
    assert from_bytes(group.as_bytes(topic)[:-1]) == []


def test_a_partition_without_a_commit_can_be_read_back() -> None:
    topic = TopicProgress([7, 0], [10, 20], NOW)
    group = GroupProgress(committed(-1, -1), NOW)
    group.update(committed(-1, -1), topic, committed(7, -1))
    (read,) = from_bytes(group.as_bytes(topic))
    assert (read.partition, read.is_committed, read.position, read.end, read.lag) == (0, False, 7, 10, 3)


def test_a_member_that_never_commits_is_stalled() -> None:
    topic = TopicProgress([0], [100], NOW)
    group = GroupProgress(committed(-1), NOW)
    group.update(committed(-1), topic, committed(0))
    assert next(group.standings(topic, NOW)).trend is Trend.UNKNOWN
    (each,) = group.standings(topic, NOW + 15_000)
    assert (each.lag, each.pace, each.trend) == (100, 0.0, Trend.STALLED)
    group.sum_up(topic, NOW + 15_000)
    assert (group.total.lag, group.total.not_committed, group.total.trend) == (100, 1, Trend.STALLED)


def test_partitions_without_a_known_end_are_counted_and_left_out_of_the_lag() -> None:
    topic = TopicProgress([0, -1, -1], [10, -1, -1], NOW)
    group = GroupProgress(committed(4, 5, -1), NOW)
    group.update(committed(4, 5, -1), topic)
    group.sum_up(topic, NOW)
    assert (group.total.lag, group.total.unmeasured) == (6, 1)
    assert combined([group.total, group.total]).unmeasured == 2


def test_the_lag_of_a_group_with_only_offline_partitions_is_unknown() -> None:
    topic = TopicProgress([0, -1], [10, -1], NOW)
    group = GroupProgress(committed(-1, 5), NOW)
    group.update(committed(-1, 5), topic)
    group.sum_up(topic, NOW)
    assert group.total == total_of(group.standings(topic, NOW))
    assert (group.total.lag, group.total.trend) == (None, Trend.UNKNOWN)


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 30),
            st.integers(0, 20),
            st.integers(-1, 40),
            st.integers(0, 20),
            st.booleans(),
            st.integers(-1, 30),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 90_000),
)
@example([(0, 19, 0, 20, False, 0)], 3_839)  # pace and arrival differ by exactly 5 %
def test_the_total_equals_that_of_the_partitions(
    rows: list[tuple[int, int, int, int, bool, int]], passed_ms: int
) -> None:
    first = [row[0] for row in rows]
    topic = TopicProgress([0] * len(rows), [row[2] for row in rows], NOW)
    group = GroupProgress(committed(*first), NOW)
    now = NOW + passed_ms
    topic.update([0] * len(rows), [row[2] + row[3] if row[2] >= 0 else -1 for row in rows], now)
    offsets = committed(*(row[0] + row[1] if row[0] >= 0 else -1 for row in rows))
    positions = committed(*(offset if offset >= 0 else row[5] for offset, row in zip(offsets, rows, strict=True)))
    for partition, offset in group.update(offsets, topic, positions):
        if rows[partition][4]:
            group.set_time(partition, offset, NOW - partition)
    group.rates.note(offsets, now)
    group.sum_up(topic, now)
    standings = list(group.standings(topic, now))
    assert len(standings) == sum(position >= 0 for position in positions)
    for expected in (total_of(standings), combined([total_of([item]) for item in standings])):
        assert group.total._replace(pace=0, arrival=0, catches_up_in=0) == expected._replace(
            pace=0, arrival=0, catches_up_in=0
        )
        assert group.total.pace == pytest.approx(expected.pace)
        assert group.total.arrival == pytest.approx(expected.arrival)
        assert group.total.catches_up_in == pytest.approx(expected.catches_up_in)
