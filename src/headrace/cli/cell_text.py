"""Measure, shorten and fold the text of cells for a terminal, where some characters are wide and others are escaped."""

from headrace.cli.output import Lines
from headrace.wording import escaped_line


def width_of(text: str) -> int:
    """Return the number of columns that `text` takes on a terminal."""
    text = escaped_line(text)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shortened(text: str, width: int) -> str:
    """Replace the middle of a text longer than the width by an ellipsis: ids often differ only at their ends."""
    text = escaped_line(text)
    if width_of(text) <= width:
        return text
    tail = max(width - 1, 0) // 2
    head = max(width - 1, 0) - tail
    start, end = text[:head], text[len(text) - tail :]
    while width_of(start) > head:
        start = start[:-1]
    while width_of(end) > tail:
        end = end[1:]
    return f"{start}…{end}"


def folded(text: str, width: int) -> Lines:
    """Wrap between words, and shorten longer words."""
    lines = [""]
    for word in escaped_line(text).split(" "):
        piece = _shortened_word(word, width)
        joined = f"{lines[-1]} {piece}".lstrip(" ")
        if width_of(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(piece)
    return Lines("\n".join(lines))


def _shortened_word(word: str, width: int) -> str:
    if width_of(word) <= width:
        return word
    mark = word[-1] if word[-1] in ",;:" else ""
    # Keep room for a punctuation mark even without one, so that a name looks the same wherever it appears.
    return shortened(word.removesuffix(mark), width - 1) + mark
