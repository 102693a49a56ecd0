"""Read the records to produce from lines of files and standard input."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headrace.cli.failures import CommandError
from headrace.cli.json_lines import MalformedRecordError, from_json_line
from headrace.cli.record import Record
from headrace.cli.text_lines import from_text_line, unescape


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    stream: BinaryIO
    size: int | None
    """Bytes; None if unknown."""

    @property
    def is_terminal(self) -> bool:
        return self.stream.isatty()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """Format of a line: JSON, or text with an optional key separator and an optional text that means null."""

    jsonl: bool = False
    key_separator: str | None = None
    null: str | None = None
    now_ms: int = 0
    """The time now, for '15m ago' in a JSON line."""


@contextmanager
def open_sources(paths: Sequence[Path]) -> Iterator[list[Source]]:
    """Open all files at once, so that a missing one fails before the first record is sent. Raises CommandError."""
    with ExitStack() as files:
        yield [_open(path, files) for path in paths]


def read_records(source: Source, line_format: LineFormat) -> Iterator[tuple[Record, int]]:
    r"""Yield records and the size of their lines in bytes. Raises CommandError, naming the source and the line.

    Lines end with \n or \r\n. An empty line is an empty value; in JSON lines it is skipped.
    """
    separator = None if line_format.key_separator is None else unescape(line_format.key_separator).encode()
    null = None if line_format.null is None else line_format.null.encode()
    number = 0
    try:
        for line in source.stream:
            number += 1
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if not line_format.jsonl:
                yield from_text_line(text, separator, null), len(line)
            elif text.strip():
                yield from_json_line(text, line_format.now_ms), len(line)
    except MalformedRecordError as error:
        raise CommandError(f"{source.name}, line {number:,}: {error}") from None
    except OSError as error:
        raise _unreadable(f"{source.name}, after line {number:,}" if number else source.name, error) from None


def _open(path: Path, files: ExitStack) -> Source:
    if str(path) == "-":
        if sys.stdin is None:
            raise CommandError("cannot read standard input: it is closed")
        return Source("standard input", sys.stdin.buffer, None)
    try:
        stream = files.enter_context(path.open("rb"))
        size = path.stat().st_size if path.is_file() else None
    except OSError as error:
        raise _unreadable(f"'{path}'", error) from None
    return Source(str(path), stream, size)


def _unreadable(what: str, error: OSError) -> CommandError:
    return CommandError(f"cannot read {what}: {(error.strerror or str(error)).lower()}")
