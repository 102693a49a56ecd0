"""Sources of records that cannot be read."""

import errno
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.failures import CommandError
from headrace.cli.record_sources import LineFormat, Source, open_sources, read_records


class Failing(io.BytesIO):
    """A stream that fails after these lines."""

    def __init__(self, *lines: bytes) -> None:
        super().__init__()
        self._lines = lines

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "cannot read access.log: input/output error"),
        ([b"a\n", b"b\n"], "cannot read access.log, after line 2: input/output error"),
    ],
)
def test_a_disk_that_fails(lines: list[bytes], message: str) -> None:
    records = read_records(Source("access.log", Failing(*lines), None), LineFormat())
    with pytest.raises(CommandError) as raised:
        list(records)
    assert raised.value.what == message


def test_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CommandError, match="standard input: it is closed"), open_sources([Path("-")]):
        pass
