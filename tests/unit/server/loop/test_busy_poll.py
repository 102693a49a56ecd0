from collections.abc import Callable

from headrace.server.loop.busy_poll import BusyPoll

WINDOW_US = 100


class Broker:
    """A busy poll with a manual clock."""

    def __init__(self, window_us: int = WINDOW_US) -> None:
        self.us = 1_000_000
        self.calls: list[Callable[[], None]] = []
        self.poll = BusyPoll(self.calls.append, window_us, clock=lambda: self.us * 1000)

    def ask(self, after_us: int) -> None:
        self.us += after_us
        came_ns = self.us * 1000
        self.us += 20
        self.poll.answered(came_ns, self.us * 1000)

    def turn(self) -> bool:
        """Run one turn of the loop; return False if the loop would sleep."""
        due, self.calls[:] = self.calls[:], []
        for call in due:
            call()
        return bool(due)

    def polls_for(self) -> int:
        """Return the microseconds until the loop sleeps."""
        begin = self.us
        while self.turn():
            self.us += 1
        return self.us - begin


def test_the_loop_sleeps_without_requests() -> None:
    assert Broker().polls_for() == 0


def test_the_loop_polls_after_requests_that_soon_follow_replies() -> None:
    broker = Broker()
    polled = []
    for _ in range(12):
        broker.ask(after_us=50)
        polled.append(broker.polls_for())
        broker.us -= polled[-1]
    # the first request comes after a long pause
    assert polled[:7] == [0] * 7
    assert all(WINDOW_US <= item <= WINDOW_US + 2 for item in polled[8:])


def test_a_reply_restarts_the_window() -> None:
    broker = Broker()
    for _ in range(10):
        broker.ask(after_us=50)
    broker.us += 90
    assert broker.turn()
    broker.ask(after_us=0)
    assert WINDOW_US <= broker.polls_for() <= WINDOW_US + 2


def test_polling_schedules_one_callback() -> None:
    broker = Broker()
    for _ in range(50):
        broker.ask(after_us=50)
    assert len(broker.calls) == 1


def test_rare_requests_never_cause_polling() -> None:
    broker = Broker()
    for _ in range(100):
        broker.ask(after_us=1000)
        assert broker.polls_for() == 0


def test_a_few_late_requests_end_polling_and_one_does_not() -> None:
    broker = Broker()
    for _ in range(100):
        broker.ask(after_us=50)
    broker.polls_for()
    broker.ask(after_us=1000)
    assert broker.polls_for()
    broker.ask(after_us=1000)
    broker.ask(after_us=1000)
    broker.polls_for()
    broker.ask(after_us=1000)
    assert not broker.polls_for()


def test_at_most_one_poll_in_five_requests_is_wasted() -> None:
    for soon in range(10):
        broker = Broker()
        wasted = 0
        for number in range(1, 201):
            is_late = number % (soon + 1) == 0
            if is_late:
                wasted += broker.polls_for() > 0
            broker.ask(after_us=1000 if is_late else 50)
            broker.turn()
        assert wasted <= 200 / 5, f"{soon} requests come soon, one late"


def test_a_window_of_zero_is_never_polled() -> None:
    broker = Broker(window_us=0)
    for _ in range(100):
        broker.ask(after_us=0)
        assert broker.polls_for() == 0
