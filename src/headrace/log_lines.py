"""Log lines that clients cannot forge."""

import logging
from typing import Any

from headrace.wording import escaped


class LineFormatter(logging.Formatter):
    """Escapes control characters, which client ids and names may contain, and indents all lines but the first."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name in logging
        record.message = _indented(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  the names in logging
        return "    " + _indented(super().formatException(ei))


def _indented(text: str) -> str:
    return escaped(text).replace("\n", "\n    ")
