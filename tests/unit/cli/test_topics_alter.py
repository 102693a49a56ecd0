"""`headrace topics alter` changes nothing if it rejects the number of partitions."""

from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli import topics
from headrace.cli.cluster import Cluster
from headrace.cli.main import app


@pytest.fixture(autouse=True)
def changes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The changes made to a topic `t` of three partitions."""
    made: list[Any] = []

    def create_partitions(new: list[Any], **_: object) -> dict[str, None]:
        made.append(new[0].new_total_count)
        return {"t": None}

    admin = SimpleNamespace(
        create_partitions=create_partitions,
        describe_configs=lambda *_, **__: pytest.fail("the settings need not be read"),
    )
    three = SimpleNamespace(partitions=[None] * 3)
    found = SimpleNamespace(admin=admin, describe=lambda _: [three], answer=lambda *_: None)
    monkeypatch.setattr(Cluster, "connect", lambda _: found)
    monkeypatch.setattr(topics, "_alter_configs", lambda _, __, settings: made.append(settings))
    return made


@pytest.mark.parametrize("partitions", ["1", "3"])
def test_too_few_partitions_are_rejected_first(partitions: str, changes: list[Any]) -> None:
    settings = ["--config=retention.ms=5", "--delete-config=cleanup.policy"]
    result = CliRunner().invoke(app, ["topics", "alter", "t", *settings, "--partitions", partitions])
    assert result.exit_code == 1
    assert "topic 't' already has 3 partitions" in result.stderr
    assert changes == []


def test_settings_and_partitions_are_changed(changes: list[Any]) -> None:
    result = CliRunner().invoke(app, ["topics", "alter", "t", "--config", "retention.ms=5", "--partitions", "4"])
    assert result.exit_code == 0
    assert changes == [{"retention.ms": "5"}, 4]
    assert result.stderr.splitlines() == ["t: retention.ms is now 5", "t: 4 partitions, up from 3"]
