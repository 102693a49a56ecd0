"""The docs agree with the code: links have targets, commands exist, generated parts are up to date."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from headrace.cli.main import app
from headrace.config import load
from headrace.config.broker_settings import known_keys
from scripts.docs import regenerated

ROOT = Path(__file__).resolve().parent.parent
PAGES = {page: page.read_text() for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])}
MAKEFILE = (ROOT / "Makefile").read_text()


@cache
def program() -> Any:
    """Return Headrace's command, which takes a while to build."""
    return typer.main.get_command(app)


def commands(page: Path, program: str) -> list[str]:
    """Return the calls of a program in the code blocks and inline code of a page."""
    text = PAGES[page]
    code = re.findall(r"^(?: {4}|\$ )(.+)$", text, re.MULTILINE)
    code += [
        line
        for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    code += re.findall(r"`([^`\n]+)`", text)
    found = (
        re.match(rf"(?:\$ )?(?:\.venv/bin/)?({program} .*?)(?:\s+#.*|\s*\||\s*&)?$", line.strip()) for line in code
    )
    return [match[1] for match in found if match]


def test_links_have_targets() -> None:
    targets = [(page, target) for page, text in PAGES.items() for target in re.findall(r"\]\((?!\w+:)([^)#]+)", text)]
    assert [(page, target) for page, target in targets if not (page.parent / target).exists()] == []


def test_generated_parts_are_up_to_date() -> None:
    assert [page for page, text in PAGES.items() if text != regenerated(text)] == [], "run `make docs`"


def test_make_targets_exist() -> None:
    for command in (command for page in PAGES for command in commands(page, "make")):
        for word in shlex.split(command)[1:]:
            assert "=" in word or re.search(rf"^{word}:", MAKEFILE, re.MULTILINE), command


def test_headrace_commands_and_their_options_exist() -> None:
    for line in (line for page in PAGES for line in commands(page, "headrace")):
        command: Any = program()
        words = shlex.split(line)[1:]
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        assert [option for option in options if option not in known] == [], line


def test_every_command_is_in_the_table_of_commands() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    table = re.findall(r"^\| \[`headrace (\w+)`\]\(#([\w-]+)\)", page, re.MULTILINE)
    app_commands: Any = program()
    assert [name for name, _ in table] == list(app_commands.list_commands(None))
    sections = {title.replace(" ", "-") for title in re.findall(r"^## (.+)$", page, re.MULTILINE)}
    assert {anchor for _, anchor in table} <= sections


def test_every_variable_of_the_environment_is_on_the_settings_page() -> None:
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"\"(HEADRACE_[A-Z]+(?:_[A-Z]+)*)\"", code))
    page = (ROOT / "docs/configuration.md").read_text()
    assert {"HEADRACE_LOG_LEVEL", "HEADRACE_BOOTSTRAP"} <= read
    assert {name for name in read if f"`{name}`" not in page} == set()


def block(page: str, title: str) -> str:
    """Return the code block that begins with a comment."""
    (found,) = re.findall(
        rf"^```\w*\n# {re.escape(title)}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return str(found)


def test_settings_of_a_cluster_are_valid() -> None:
    config = load(block("docs/cluster.md", "server.properties"), {}, [])
    assert config.zookeeper_connect == "host1:2181,host2:2181,host3:2181/headrace"
    assert (config.node_id, config.default_replication_factor) == (1, 3)


def test_settings_on_the_page_of_clusters_exist() -> None:
    page = (ROOT / "docs/cluster.md").read_text()
    rows = re.findall(r"^\| ((?:`[a-z.]+`(?:, )?)+) \|", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z.]+)`", row)}
    assert "zookeeper.connect" in named
    assert named - known_keys() == set()


def test_the_service_starts_a_broker_with_valid_options() -> None:
    (line,) = re.findall(
        r"^ExecStart=/opt/headrace/bin/(headrace .*)$", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE
    )
    command: Any = program()
    _, *words = shlex.split(line)
    known = {option for parameter in command.commands[words[0]].params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_metrics_of_the_alarms_for_a_cluster_are_explained() -> None:
    used = re.findall(r"\b(?:kafka|headrace)_\w+", block("docs/cluster.md", "alerts.yml"))
    explained = (ROOT / "docs/monitoring.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "src/headrace").rglob("*.py"))
    assert len(used) > 10
    assert [name for name in used if f"`{name}`" not in explained] == []
    # Some names are composed of a prefix and the last word.
    assert [name for name in used if name.removesuffix("_total").rpartition("_")[2] not in code] == []


def test_nothing_is_installed_from_an_index_that_does_not_have_it() -> None:
    """Remove this test once Headrace is on PyPI."""
    assert [page for page, text in PAGES.items() if re.search(r"pip install [^\n`]*\bheadrace\b(?!/)", text)] == []


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    pages = [page.name for page in ROOT.glob("docs/decisions/[0-9]*.md")]
    assert pages
    assert [name for name in pages if f"({name})" not in index] == []
    assert len({name[:3] for name in pages}) == len(pages)


def test_make_help_lists_every_target() -> None:
    targets = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    assert targets == set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert targets == set(re.findall(r"^([a-z]+):.*?## .", MAKEFILE, re.MULTILINE))


def test_readme_names_the_command_that_ci_runs() -> None:
    ci = (ROOT / ".ci/run").read_text()
    assert "make test" in commands(ROOT / "README.md", "make")
    assert re.search(r"^make test\b", ci, re.MULTILINE)
