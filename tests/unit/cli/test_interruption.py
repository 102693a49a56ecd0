import signal

import pytest

from headrace.cli.interruption import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_the_second_interrupts(number: signal.Signals) -> None:
    with Interruption() as interruption:
        signal.raise_signal(number)
        assert interruption.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_earlier_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interruption():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
