from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import main
from headrace.cli.start import _configuration
from headrace.cli.start_args import StartOptions, UsageError, parse, start_options
from tests.support.refusals import wrong_reasons


def test_a_value_may_follow_a_space_or_an_equals_sign() -> None:
    expected = StartOptions(
        data="d", listen=("0.0.0.0", 9092), config="server.properties", settings={"a": "1", "b": "x=y"}
    )
    spaced = "--data d --listen 0.0.0.0:9092 --config server.properties --set a=1 --set b=x=y"
    assert parse(spaced.split()) == expected
    assert parse(spaced.replace(" ", "=").replace("=--", " --").split()) == expected
    assert parse([]) == StartOptions(data=None, listen=None, config=None, settings={})


def test_a_switch_may_be_anywhere() -> None:
    for line in ("--until-eof --data d", "--data d --until-eof"):
        assert parse(line.split()) == StartOptions(data="d", until_eof=True)
    assert parse(["--until-eof=1"]) is None


def test_the_last_of_a_repeated_option_wins() -> None:
    options = parse(["--data", "a", "--data", "b", "--set", "k=1", "--set", "k=2"])
    assert options is not None
    assert (options.data, options.settings) == ("b", {"k": "2"})


def test_help_and_errors_are_left_to_typer() -> None:
    lines = ("--help", "--data", "--data=", "--dat x", "x", "--set a", "--listen 9092", "--set --help")
    assert {line: parse(line.split()) for line in lines} == dict.fromkeys(lines)


def test_only_valid_addresses_and_settings_are_accepted() -> None:
    assert start_options(None, "[::1]:0", None, []).listen == ("::1", 0)
    addresses = dict.fromkeys(("9092", "localhost", "h:x", "h:99999", "h:" + "9" * 5000), "is not HOST:PORT")
    addresses["::1:9092"] = "put an IPv6 address in brackets"
    assert wrong_reasons(addresses, lambda listen: start_options(None, listen, None, []), UsageError) == {}
    with pytest.raises(UsageError, match="'retention' is not KEY=VALUE"):
        start_options(None, None, None, ["retention"])


def test_a_settings_file_may_be_in_latin_1_or_utf_8(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_bytes("# für Köln\nbroker.rack=Köln\n".encode("latin-1"))
    assert _configuration(StartOptions(config=str(settings))).broker_rack == "Köln"
    settings.write_text("broker.rack=Köln\n", encoding="utf-8")
    assert _configuration(StartOptions(config=str(settings))).broker_rack == "Köln"


OPTIONS = ["--data", "--data=d", "--listen", "--listen=h:2", "--set", "--set=b=2", "--config", "--until-eof"]


@given(st.lists(st.sampled_from([*OPTIONS, "h:1", "a=1", "f", "d"]), max_size=6))
def test_the_quick_parser_never_disagrees_with_typer(args: list[str]) -> None:
    quick = parse(args)
    if quick is not None:
        assert _through_typer(args) == quick


def _through_typer(args: list[str]) -> StartOptions:
    command: Any = typer.main.get_command(main.app)
    with command.commands["start"].make_context("start", list(args)) as context:
        values = context.params
    return start_options(
        values["data"], values["listen"], values["config"], values["settings"] or [], until_eof=values["until_eof"]
    )
