import logging

from headrace.log_lines import LineFormatter


def test_names_from_clients_cannot_forge_lines() -> None:
    expected = {
        "plain-Ä 1": "plain-Ä 1",
        "a\n2026-01-01 ERROR forged": "a\n    2026-01-01 ERROR forged",
        "a\r\x1b[31m\tb\u2028c": "a\\r\\x1b[31m\\tb\\u2028c",
    }
    shown = {}
    for client_id in expected:
        record = logging.LogRecord("n", logging.WARNING, "", 0, "from %s refused", (client_id,), None)
        shown[client_id] = LineFormatter("%(levelname)s %(message)s").format(record)
    assert shown == {client_id: f"WARNING from {text} refused" for client_id, text in expected.items()}


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
