import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "headrace"
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
CALL = re.compile(rf"(?<![\w.])log\.({'|'.join(LEVELS)})\(")


def messages(source: Path) -> Iterator[tuple[int, str]]:
    text = source.read_text()
    if CALL.search(text) is None:  # parsing takes much longer
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log"), attr=level),
                args=[ast.Constant(value=str(message)), *_],
            ) if level in LEVELS:
                yield node.lineno, message


def test_log_messages_begin_with_a_capital_letter_or_a_name() -> None:
    found = [(source, line, message) for source in SOURCES.rglob("*.py") for line, message in messages(source)]
    assert len(found) > 50
    assert [item for item in found if item[2][0].islower()] == []
