import logging

import pytest

from headrace.log_lines import LineFormatter


@pytest.mark.parametrize(
    ("client_id", "shown"),
    [
        ("plain-Ä 1", "plain-Ä 1"),
        ("a\n2026-01-01 ERROR forged", "a\n    2026-01-01 ERROR forged"),
        ("a\r\x1b[31m\tb\u2028c", "a\\r\\x1b[31m\\tb\\u2028c"),
    ],
)
def test_names_from_clients_cannot_forge_lines(client_id: str, shown: str) -> None:
    record = logging.LogRecord("n", logging.WARNING, "", 0, "from %s refused", (client_id,), None)
    assert LineFormatter("%(levelname)s %(message)s").format(record) == f"WARNING from {shown} refused"


def test_tracebacks_are_indented() -> None:
    try:
        raise ValueError("why\nERROR \x1bforged")
    except ValueError as error:
        record = logging.LogRecord("n", logging.ERROR, "", 0, "failed", (), (ValueError, error, error.__traceback__))
    first, *lines = LineFormatter("%(message)s").format(record).split("\n")
    assert first == "failed"
    assert (lines[0], lines[-2], lines[-1]) == (
        "    Traceback (most recent call last):",
        "    ValueError: why",
        "    ERROR \\x1bforged",
    )
    assert all(line.startswith("    ") for line in lines)
