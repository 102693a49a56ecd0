"""How many examples property-based tests try: few in `make test`, many in `make slow`, which runs all of them again."""

from typing import Final

from hypothesis import settings

GATE: Final = "gate"
_GATE_SHARE: Final = 0.3
_SLOW_TIMES: Final = 4
_DEFAULT: Final = 50

settings.register_profile(GATE, deadline=None, max_examples=round(_GATE_SHARE * _DEFAULT))
settings.register_profile("slow", deadline=None, max_examples=_SLOW_TIMES * _DEFAULT)


def examples(usual: int) -> int:
    """Return a part of the usual number in `make test`, and a multiple in `make slow`."""
    assert settings.default is not None
    return round(usual * settings.default.max_examples / _DEFAULT)
