"""Latencies of lines, from when they were sent and when counts included them."""

from bench.pipeline import latencies_of


def test_a_line_waits_for_the_first_count_that_includes_it() -> None:
    sent = [0.0, 1.0, 2.0, 3.0]
    assert list(latencies_of(sent, [(5.0, 2), (9.0, 4)], skip=0)) == [5.0, 4.0, 7.0, 6.0]


def test_lines_of_the_warm_up_do_not_count() -> None:
    assert list(latencies_of([0.0, 1.0, 2.0], [(5.0, 2), (9.0, 3)], skip=1)) == [4.0, 7.0]


def test_a_count_that_falls_changes_nothing() -> None:
    assert list(latencies_of([0.0, 1.0], [(5.0, 2), (6.0, 1), (7.0, 2)], skip=0)) == [5.0, 4.0]
