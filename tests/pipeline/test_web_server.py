"""The demo's web server, visited over HTTP."""

import re
import threading

import pytest

from headrace.pipeline.demo import sources, visitors
from headrace.pipeline.demo.timestamps import time_of

_COMBINED = re.compile(rb'^\S+ - - \[[^]]+\] "[^"]+" \d{3} \d+ "[^"]*" "[^"]+"$')


def test_the_web_server_logs_every_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "_TAKES_S", 0.0)
    source = sources.WebServerSource()
    lines = list(source.lines(threading.Event()))
    assert len(lines) == source.expected
    assert [line for line in lines if not _COMBINED.match(line)] == []
    statuses = {line.split(b'" ')[1].split()[0] for line in lines}
    assert statuses == {b"200", b"404", b"500"}
    assert len({line.split()[0] for line in lines}) > 20
    assert all(time_of(line) for line in lines)
