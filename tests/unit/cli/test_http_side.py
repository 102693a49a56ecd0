"""Details of groups from the HTTP listeners and settings of brokers."""

from email.message import Message
from http.client import BadStatusLine, IncompleteRead, InvalidURL
from io import BytesIO
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.cli import group_calls, group_report, group_timeline
from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError
from headrace.cli.http_side import HttpSide, _address
from tests.support.refusals import wrong_reasons


def test_the_address_is_reachable_from_the_client() -> None:
    addresses = {
        (None, "10.0.0.1"): None,
        ("", "10.0.0.1"): None,
        ("127.0.0.1:9404", "127.0.0.1"): "127.0.0.1:9404",
        ("9404", "localhost"): "127.0.0.1:9404",
        ("127.0.0.1:0", "127.0.0.1"): None,
        ("0.0.0.0:9404", "kafka-1.example"): "kafka-1.example:9404",
        ("[::]:9404", "fe80::1"): "[fe80::1]:9404",
        ("127.0.0.1:9404", "kafka-1.example"): None,
        ("10.0.0.9:9404", "kafka-1.example"): "10.0.0.9:9404",
    }
    assert {pair: _address(*pair) for pair in addresses} == addresses


def elsewhere(answer: bytes | Exception) -> HttpSide:
    """Return the HTTP listener of another server, which gives this answer."""

    def give(*_: object, **__: object) -> BytesIO:
        if isinstance(answer, Exception):
            raise answer
        return BytesIO(answer)

    side = HttpSide("h:1")
    side._opener = cast(Any, SimpleNamespace(open=give))
    return side


def test_the_answer_of_another_server_is_an_error() -> None:
    def get(answer: bytes | Exception) -> None:
        elsewhere(answer).get("/groups/timeline", "events")

    reasons: dict[bytes | Exception, str] = {
        BadStatusLine("SSH-2.0\r\n"): "SSH-2.0",
        BadStatusLine("\0\0"): "BadStatusLine",
        IncompleteRead(b"", 5): "IncompleteRead(0 bytes read, 5 more expected)",
        InvalidURL("nonnumeric port: 'x'"): "nonnumeric port: 'x'",
        b"{}": "it has no field 'events', so it is not from a Headrace broker",
        b"null": "it has no field 'events', so it is not from a Headrace broker",
        b"<html>": "Expecting value: line 1 column 1 (char 0)",
        b"[" * 100_000: "maximum recursion depth exceeded",
    }
    start = "no valid reply from the broker's HTTP listener at h:1: "
    assert wrong_reasons({answer: start + reason for answer, reason in reasons.items()}, get) == {}
    with pytest.raises(CommandError, match=r"SSH-2\.0\Z"):
        get(BadStatusLine("SSH-2.0\r\n"))


def test_only_the_404_of_a_broker_is_an_answer() -> None:
    def answer(body: bytes) -> HttpSide:
        return elsewhere(HTTPError("http://h:1/", 404, "Not Found", Message(), BytesIO(body)))

    assert answer(b'{"error": "Not Found", "message": "no group g"}').get("/groups/describe", "members") is None
    for page in (b"<html>", b"[]", b'{"detail": "Not Found"}'):
        with pytest.raises(CommandError, match="http://h:1/groups/describe: 404 Not Found"):
            answer(page).get("/groups/describe", "members")


def test_a_server_without_timelines_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    described = SimpleNamespace(coordinator=SimpleNamespace(id=1, host="h"))
    monkeypatch.setattr(group_calls, "describe_groups", lambda *_: {"g": described})
    monkeypatch.setattr(HttpSide, "get", lambda *_, **__: None)
    with pytest.raises(CommandError, match="at h:1: /groups/timeline does not exist there"):
        group_timeline.timeline(cast(Cluster, None), "g", 0, 1, 10, "h:1")


def test_a_lost_cluster_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_topics(**_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    lost = cast(Any, Cluster.__new__(Cluster))
    lost.bootstrap, lost.admin = "b:1", SimpleNamespace(list_topics=list_topics)
    monkeypatch.setattr(group_calls, "describe_groups", lambda *_: {})
    with pytest.raises(CommandError, match=r"^listing brokers: no reply from b:1$"):
        group_timeline.timeline(lost, "g", 0, 1, 10, None)  # of a deleted group
    with pytest.raises(CommandError, match=r"^listing brokers: no reply from b:1$"):
        group_report.assumed_reset(lost, None, None)
