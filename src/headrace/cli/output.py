"""Output of commands: tables, JSON, and messages on standard error.

Tables are drawn with rich on a terminal. In a pipe they are tab-separated lines with a header, for `cut`, `sort` and
`column`. Standard output contains only results; messages go to standard error.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Final

from headrace import wording
from headrace.cli.failures import CommandError

Cell = str | int | None
_UNLIMITED: Final = 10_000
"""Width for a pipe or file, where no line is to be folded."""
count = wording.count


class Lines(str):
    """The text of a cell, folded into lines. Line feeds in other texts are escaped: they would look like rows."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are right-aligned."""

    title: str
    number: bool = False


def is_terminal(stream: IO[str]) -> bool:
    return stream.isatty()


def _is_styled(stream: IO[str]) -> bool:
    """Return True if text on the stream may be bold and coloured (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def stdout_is_terminal() -> bool:
    return sys.stdout.isatty()


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, aligned: bool = False) -> None:
    """Print to standard output; None is shown as '-'. An `aligned` table is aligned in a pipe too.

    In a pipe, control characters in cells are escaped: a name with a tab or a line feed would look like other cells.
    """
    if not stdout_is_terminal() and not aligned:
        write_lines("\t".join([column.title.lower().replace(" ", "_") for column in columns]))
        write_lines(
            *("\t".join("-" if cell is None else wording.in_one_line(str(cell)) for cell in row) for row in rows)
        )
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-", "dim") if cell is None else Text(_shown(cell)) for cell in row))
    with writing():
        Console(highlight=False, width=None if stdout_is_terminal() else _UNLIMITED).print(table)


def print_pairs(pairs: Sequence[tuple[str, Cell]]) -> None:
    """Print names with their values to standard output, one pair a line; None is shown as '-'."""
    on_terminal = stdout_is_terminal()
    width = max(len(name) for name, _ in pairs)
    for name, cell in pairs:
        value = "-" if cell is None else _shown(cell) if on_terminal else wording.in_one_line(str(cell))
        title = f"\x1b[1m{name:<{width}}\x1b[0m" if _is_styled(sys.stdout) else f"{name:<{width}}"
        write_lines(f"{title}   {value}" if on_terminal else f"{name.lower()}\t{value}")


def print_json(value: object) -> None:
    write_lines(wording.without_controls(json.dumps(value, indent=2, ensure_ascii=False)))


def write_lines(*lines: str) -> None:
    with writing():
        sys.stdout.write("".join(line + "\n" for line in lines))
        sys.stdout.flush()


def asking(*, json: bool) -> AbstractContextManager[object]:
    """Wrap a question and its table. With `json` they go to standard error, because only JSON may be on stdout."""
    # The question is wrapped too: typer writes its last character to sys.stdout even with err=True.
    return redirect_stdout(sys.stderr) if json else nullcontext()


@contextmanager
def writing() -> Iterator[None]:
    """Wrap writes to standard output. Raises CommandError if one fails; BrokenPipeError passes through."""
    try:
        yield
    except BrokenPipeError:
        discard(sys.stdout)
        raise
    except SystemExit as ended:
        # rich raises SystemExit if it prints to a broken pipe.
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None
        raise
    except OSError as error:
        discard(sys.stdout)
        reason = (error.strerror or str(error)).lower()
        raise CommandError(f"cannot write to standard output: {reason}") from None


def discard(stream: IO[str]) -> None:
    """Redirect the stream to /dev/null; otherwise Python would fail again when it flushes the buffer at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def tell(text: str) -> None:
    """Print a message of one line to standard error, with escapes for control characters."""
    _print_error(wording.escaped_line(text))


def warn(text: str) -> None:
    """Print a longer message to standard error, wrapped between words."""
    _print_error(_folded(wording.escaped_line(text)))


def tell_error(what: str, hint: str | None) -> None:
    """Print an error, and the hint on the next line, to standard error. Line feeds in them are escaped."""
    mark = "\x1b[1;31mError:\x1b[0m" if _is_styled(sys.stderr) else "Error:"
    error = _folded(f"{mark} {wording.escaped_line(what)}")
    _print_error(error + (f"\n{_folded(wording.escaped_line(hint))}" if hint else ""))


@contextmanager
def telling() -> Iterator[None]:
    """Wrap writes to standard error. If one fails, drop its text and all later ones: the terminal may be closed."""
    try:
        yield
    except OSError:
        discard(sys.stderr)


def _print_error(text: str) -> None:
    with telling():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def size(number: int) -> str:
    """Format bytes for people, in powers of 1024: '512 B', '1.5 KB', '20 GB'."""
    if number < 1024:
        return f"{number} B"
    value, unit = number / 1024, "KB"
    for larger in ("MB", "GB", "TB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.{0 if value >= 100 else 1}f} {unit}"


def seconds(duration: float) -> str:
    """Format a duration: '0.04 s', '12.3 s', '3 min 20 s', '5 h 3 min', '3 d 4 h'."""
    if duration < 60:
        return f"{duration:.{2 if duration < 1 else 1}f} s"
    minutes, rest = divmod(round(duration), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def utc(time_ms: int) -> str:
    """Format a time (ms) as ISO 8601 in UTC, or as the number of ms if its year is not between 1 and 9999."""
    seconds, ms = divmod(time_ms, 1000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)
    except (ValueError, OverflowError, OSError):
        # Producers may set any timestamp, for example one in microseconds.
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _folded(text: str) -> str:
    """Wrap between words; a terminal would break a line anywhere."""
    if not is_terminal(sys.stderr):
        return text
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _shown(cell: str | int) -> str:
    if isinstance(cell, int):
        return f"{cell:,}"
    return wording.escaped(cell) if isinstance(cell, Lines) else wording.escaped_line(cell)
