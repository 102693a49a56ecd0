"""docs/cli.md explains every option in the section of its command, and help pages have examples."""

import re
from pathlib import Path
from typing import Any

import typer.main

from headrace.cli.main import app

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:])
SHARED = {"--bootstrap", "--quiet", "--help", "--json", "--yes"}


def _commands(command: Any, path: str) -> dict[str, Any]:
    if not hasattr(command, "commands"):
        return {path: command}
    return {
        name: leaf
        for child in command.commands.values()
        for name, leaf in _commands(child, f"{path} {child.name}").items()
    }


def test_every_option_is_explained() -> None:
    unexplained = {
        (name, option)
        for name, command in _commands(typer.main.get_command(app), "headrace").items()
        for param in command.params
        for option in {opt for opt in (*param.opts, *param.secondary_opts) if opt.startswith("--")} - SHARED
        if f"`{option}" not in SECTIONS[name]
    }
    assert unexplained == set()


def test_shared_and_global_options_are_explained_once() -> None:
    introduction, common = PAGE.split("\n## ")[0], SECTIONS["Common options and exit codes"]
    options = {opt for param in typer.main.get_command(app).params for opt in param.opts}
    assert {option for option in options if option not in introduction} == set()
    assert {option for option in SHARED - {"--help"} if f"`{option}" not in common} == set()


def test_every_command_has_examples_of_itself() -> None:
    found = {path: command.epilog or "" for path, command in _commands(typer.main.get_command(app), "headrace").items()}
    assert len(found) > 40
    assert [
        path for path, epilog in found.items() if not epilog.startswith("[bold]Examples[/]") or path not in epilog
    ] == []
