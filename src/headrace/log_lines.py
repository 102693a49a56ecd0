"""Log lines that clients cannot forge."""

import logging


class LineFormatter(logging.Formatter):
    """Escapes control characters in messages, for client ids and names may contain them, and indents further lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name in logging
        record.message = _printable(record.message)
        return super().formatMessage(record)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    lines = text.split("\n")
    return "\n    ".join("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines)
