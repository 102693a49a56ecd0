import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "headrace"
MESSAGE = re.compile(r' log\.(?:debug|info|warning|error|exception|critical)\(\s*"([^"]*)"')


def test_log_messages_begin_with_a_capital_letter_or_a_name() -> None:
    found = [(source, message) for source in SOURCES.rglob("*.py") for message in MESSAGE.findall(source.read_text())]
    assert len(found) > 50
    assert [item for item in found if item[1][0].islower()] == []
