"""The files and commands of docs/pipeline/tutorial.md."""

import re
from pathlib import Path

_PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipeline" / "tutorial.md").read_text()
_FILE = r"`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<text>.*?)^```$"
_SHOWN = r"^```\n\$ (?P<shown>[^\n]+)\n(?P<output>.*?)^```$"
_COMMAND = r"^ {4}(?P<command>\S[^\n]*)$"
_STEPS = [*re.finditer(rf"{_FILE}|{_SHOWN}|{_COMMAND}", _PAGE, re.MULTILINE | re.DOTALL)]


def folder_with_files(tmp_path: Path) -> Path:
    """Create a folder with the files of the page."""
    folder = tmp_path / "empty"
    folder.mkdir()
    for step in _STEPS:
        if step["name"]:
            (folder / step["name"]).write_text(step["text"])
    assert sorted(path.name for path in folder.iterdir()) == ["my_jobs.py", "pipeline.toml", "test_my_jobs.py"]
    return folder


def commands() -> dict[str, list[str]]:
    """Return the lines that each command prints; an empty list if the page does not show them."""
    of_commands = [step for step in _STEPS if not step["name"]]
    found = {step["shown"] or step["command"]: (step["output"] or "").splitlines() for step in of_commands}
    assert len(found) == 8
    return found
