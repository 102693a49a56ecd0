"""The demo's web server, visited over HTTP."""

import re
import threading

import pytest

from headrace.pipeline.demo.shipping import sources, visitors
from headrace.pipeline.demo.shipping.log_line import client_of, time_of

pytestmark = pytest.mark.slow

_COMBINED = re.compile(rb'^\S+ - - \[[^]]+\] "[^"]+" \d{3} \d+ "[^"]*" "[^"]+"$')


def test_the_web_server_logs_every_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "_TAKES_S", 0.0)
    source = sources.WebServerSource()
    lines = list(source.lines(threading.Event(), lambda _: False))
    assert len(lines) == source.expected
    assert [line for line in lines if not _COMBINED.match(line)] == []
    statuses = {line.split(b'" ')[1].split()[0] for line in lines}
    assert statuses == {b"200", b"404", b"500"}
    assert len({line.split()[0] for line in lines}) > 20
    assert all(time_of(line) for line in lines)


def test_visits_of_an_earlier_run_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "_TAKES_S", 0.0)
    source = sources.WebServerSource()
    skipped: list[bytes] = []

    def skip(client: bytes) -> bool:
        if client == b"203.0.113.99":
            skipped.append(client)
        return client == b"203.0.113.99"

    lines = list(source.lines(threading.Event(), skip))
    assert len(lines) + len(skipped) == source.expected
    assert skipped[0] not in {client_of(line) for line in lines}
