"""A full disk: writes are refused with KAFKA_STORAGE_ERROR, everything else works, and a crash loses nothing."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.support.topic_requests import create, produce, values
from tests.support.wire_client import WireClient

STORAGE_ERROR = "kafka_storage_error"


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow; writes then fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signalled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, signalled)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data=tmp_path) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as client:
        assert create(client, "t") == "none"
        assert produce(client, "t", 0) == "none"
        yield client


def refused_changes(client: WireClient) -> list[str]:
    """Try every kind of change and return its error codes."""
    change = {"name": "retention.ms", "config_operation": 0, "value": "1"}
    altered: dict[str, Any] = {"resource_type": 2, "resource_name": "t", "configs": [change]}
    grown = {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout": 9000, "validate_only": False}
    metadata = {
        "topics": [{"topic_id": None, "name": "v"}],
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
    }
    questions: list[tuple[ApiKey, int, dict[str, Any], str]] = [
        (ApiKey.DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout": 9000}, "responses"),
        (ApiKey.CREATE_PARTITIONS, 1, grown, "results"),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [altered], "validate_only": False}, "responses"),
        (ApiKey.METADATA, 12, metadata, "topics"),
    ]
    codes = [
        client.ask(api, version, message)[answers][0]["error_code"] for api, version, message, answers in questions
    ]
    return [produce(client, "t", 0), create(client, "u"), *codes]


def test_every_change_is_refused_and_reads_work_until_space_is_freed(client: WireClient) -> None:
    with full_disk():
        assert set(refused_changes(client)) == {STORAGE_ERROR}
        assert values(client, "t") == [b"t"]
    assert produce(client, "t", 0) == "none"
    assert create(client, "u") == "none"
    assert produce(client, "u", 0) == "none"
    assert values(client, "t") == [b"t", b"t"]
