"""Records as lines of text, printed by `consume` and read by `produce` without --jsonl. Pure."""

import re
import string
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.cli import output
from headrace.cli.json_lines import MalformedRecordError
from headrace.cli.record import Record, headers

if TYPE_CHECKING:
    from confluent_kafka import Message

Formatter = Callable[["Message"], bytes]

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "0": "\0", "\\": "\\"}
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def unescape(text: str) -> str:
    r"""Replace \t, \n, \r, \0 and \\ with the characters they stand for."""
    return re.sub(r"\\([tnr0\\])", lambda match: _ESCAPES[match[1]], text)


def from_text_line(line: bytes, key_separator: bytes | None, null: bytes | None) -> Record:
    """Parse a line without its line ending. Raises MalformedRecordError if the separator is missing."""
    key: bytes | None = None
    value: bytes | None = line
    if key_separator is not None:
        key, found, value = line.partition(key_separator)
        if not found:
            raise MalformedRecordError(f"no key: the separator '{key_separator.decode()}' is missing")
    if null is not None:
        key, value = (None if data == null else data for data in (key, value))
    return Record(key, value, [])


def compile_template(template: str, null: str) -> Formatter:
    """Compile a template like '{key} {value}'. Raises ValueError for an invalid one."""
    parts: list[Formatter] = []
    for literal, field, spec, conversion in string.Formatter().parse(unescape(template)):
        if literal:
            parts.append(_literal(literal.encode()))
        if field is None:
            continue
        if field not in FIELDS:
            raise ValueError(f"unknown field '{{{field}}}': use one of {', '.join(FIELDS)}")
        if spec or conversion:
            raise ValueError(f"write '{{{field}}}' without ! or : after the name")
        parts.append(_or_null(FIELDS[field], null.encode()))
    return lambda message: b"".join([part(message) for part in parts])


def compile_columns(fields: Sequence[str], separator: str, null: str) -> Formatter:
    """Return a formatter for the named fields, separated by `separator`."""
    between = separator.encode()
    columns = [_or_null(FIELDS[field], null.encode()) for field in fields]
    if len(columns) == 1:
        return columns[0]
    return lambda message: between.join([column(message) for column in columns])


def for_terminal(formatter: Formatter) -> Formatter:
    """Make the output safe for a terminal: escape control characters and bytes that are not UTF-8."""

    def safe(message: "Message") -> bytes:
        text = formatter(message).decode(errors="backslashreplace")
        return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text).encode()

    return safe


def _literal(data: bytes) -> Formatter:
    return lambda _: data


def _or_null(field: Callable[["Message"], bytes | None], null: bytes) -> Formatter:
    def formatter(message: "Message") -> bytes:
        data = field(message)
        return null if data is None else data

    return formatter


def _timestamp(message: "Message") -> bytes | None:
    kind, timestamp = message.timestamp()
    return str(timestamp).encode() if kind else None


def _time(message: "Message") -> bytes | None:
    kind, timestamp = message.timestamp()
    return output.utc(timestamp).encode() if kind else None


def _header_list(message: "Message") -> bytes:
    return b",".join(name.encode() + b"=" + (b"null" if value is None else value) for name, value in headers(message))


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


FIELDS: dict[str, Callable[["Message"], bytes | None]] = {
    "topic": lambda message: (message.topic() or "").encode(),
    "partition": lambda message: str(message.partition()).encode(),
    "offset": lambda message: str(message.offset()).encode(),
    "timestamp": _timestamp,
    "time": _time,
    "headers": _header_list,
    "key": lambda message: _bytes(message.key()),
    "value": lambda message: _bytes(message.value()),
}
"""Fields of a record by their names in templates, in the order of printed columns."""
