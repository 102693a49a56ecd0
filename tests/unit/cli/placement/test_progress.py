"""Rate and time left of a reassignment."""

from headrace.cli.placement.progress import Progress


def observed(*pairs: tuple[float, int]) -> Progress:
    progress = Progress()
    for now_s, left in pairs:
        progress.observe(now_s, left)
    return progress


def test_rate_and_time_left() -> None:
    progress = observed((0, 1000), (1, 900), (2, 800))
    assert progress.rate == 100
    assert progress.seconds_left == 8
    assert progress.total - progress.left == 200


def test_the_rate_forgets_what_is_long_ago() -> None:
    progress = observed((0, 10_000), (1, 5000), (20, 4900), (40, 4700))
    assert progress.rate == 10


def test_nothing_is_known_after_one_look() -> None:
    assert observed((0, 1000)).rate == 0
    assert observed((0, 1000)).seconds_left is None


def test_producers_that_are_faster_than_the_move_leave_no_rate() -> None:
    progress = observed((0, 1000), (1, 1500))
    assert progress.rate == 0
    assert progress.total == 1500
