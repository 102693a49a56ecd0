import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.cli import main
from headrace.cli.interruption import Interruption, interrupt, stop_signals


@contextmanager
def hang_ups(handler: int | Callable[..., None]) -> Iterator[None]:
    """Handle SIGHUP, whose default is to end this process, in this way."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def interrupts(number: signal.Signals) -> bool:
    """Return True if the signal raises KeyboardInterrupt, which would end the test run."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_interrupts(number: signal.Signals) -> None:
    with Interruption() as interruption:
        signal.raise_signal(number)
        assert interruption.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_closed_terminal_is_noted_even_if_it_hangs_up_twice() -> None:
    with hang_ups(lambda *_: None), Interruption() as interruption:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert interruption.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_terminal_that_hangs_up_twice_interrupts_once() -> None:
    with hang_ups(interrupt):
        assert [interrupts(signal.SIGHUP), interrupts(signal.SIGHUP)] == [True, False]


def test_nohup_keeps_a_command_running() -> None:
    with hang_ups(signal.SIG_IGN), Interruption() as interruption:
        assert signal.SIGHUP not in stop_signals()
        signal.raise_signal(signal.SIGHUP)
        assert not interruption.asked


def test_ctrl_c_does_not_end_commands_in_the_background_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in stop_signals()}
    interrupted: list[bool] = []
    monkeypatch.setattr(main, "app", lambda **_: interrupted.append(interrupts(signal.SIGINT)))
    try:
        main.run()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        main.run()
        assert interrupted == [True, False]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_earlier_signal_handlers_are_restored() -> None:
    with hang_ups(lambda *_: None):
        for number in stop_signals():
            before = signal.getsignal(number)
            with Interruption():
                assert signal.getsignal(number) != before
            assert signal.getsignal(number) == before
