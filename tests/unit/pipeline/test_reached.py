"""How far a log of several partitions is settled, in event time."""

from headrace.pipeline.engine.reached import IDLE_US, Reached


def test_the_slowest_partition_settles_the_log() -> None:
    assert Reached().after({"id/0": 900, "id/1": 300}, {"id/0": 1, "id/1": 1}).settled == 300


def test_late_records_take_nothing_back() -> None:
    after = Reached().after({"id/0": 900}, {"id/0": 2}).after({"id/0": 500}, {"id/0": 1})
    assert (after.latest, after.arrived, after.settled) == ({"id/0": 900}, {"id/0": 2}, 900)


def test_an_idle_partition_holds_the_others_up_for_five_minutes() -> None:
    both = Reached().after({"id/0": 100, "id/1": 100}, {"id/0": 0, "id/1": 0})
    assert both.after({"id/1": 900}, {"id/1": IDLE_US}).settled == 100
    assert both.after({"id/1": 900}, {"id/1": IDLE_US + 1}).settled == 900


def test_a_partition_with_records_is_never_idle() -> None:
    both = Reached().after({"id/0": 100, "id/1": 100}, {"id/0": 0, "id/1": 0})
    assert both.after({"id/0": 200, "id/1": 900}, {"id/0": 1, "id/1": 2 * IDLE_US}).settled == 200


def test_a_partition_that_comes_back_does_not_unsettle_the_log() -> None:
    passed = (
        Reached().after({"id/0": 100, "id/1": 100}, {"id/0": 0, "id/1": 0}).after({"id/1": 900}, {"id/1": 2 * IDLE_US})
    )
    assert passed.after({"id/0": 200}, {"id/0": 2 * IDLE_US}).settled == 900


def test_without_arrival_times_no_partition_is_idle() -> None:
    assert Reached().after({"id/0": 100}, {}).after({"id/1": 900}, {}).settled == 100


def test_nothing_is_settled_before_the_first_event_time() -> None:
    assert Reached().after({}, {"id/0": 1}).settled is None
