"""Formatting for logs and terminals."""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

_SHOWN: Final = 3
_CONTROLS: Final = re.compile("[\x7f-\x9f]")
_ALL_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return '1 record' or '2,000 records'; `plural` is for nouns with an irregular plural."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Iterable[str], total: int) -> str:
    """Return 'a, b, c and 5 more' for `total` names. Consumes only the first three."""
    more = total - _SHOWN
    return ", ".join(islice(names, _SHOWN)) + (f" and {more:,} more" if more > 0 else "")


def is_utf8(text: str) -> bool:
    """Return False for text with an unpaired surrogate, as in a command-line argument that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    r"""Return the text of an argument, with escapes such as \xff for bytes that are not UTF-8."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()


def escaped(text: str) -> str:
    r"""Return `text` with escapes such as \x1b for characters that do not print, except line feeds and spaces."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\u00a0" else ascii(c)[1:-1] for c in text)


def in_one_line(text: str) -> str:
    r"""Return `text` with escapes such as \x1b, \t and \n for control characters; others are unchanged."""
    return _ALL_CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def escaped_line(text: str) -> str:
    r"""Return `text` with escapes for all characters that do not print, such as \n and \u200b, except spaces."""
    return escaped(in_one_line(text))


def without_controls(json_text: str) -> str:
    r"""Escape the control characters that JSON allows in strings, as in \u009b: terminals interpret them."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)
