import threading
from pathlib import Path

import pytest

from headrace.pipeline.demo.shipping import sources
from headrace.pipeline.demo.shipping.log_line import time_of
from headrace.pipeline.errors import PipelineError


def _none(_: bytes) -> bool:
    return False


def test_lines_are_read_without_line_endings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_FILE_TAKES_S", 0.0)
    log = tmp_path / "access.log"
    log.write_bytes(b"one\ntwo\r\n\n\xe9t\xe9")
    source = sources.FileSource(log)
    assert source.expected == 4
    assert list(source.lines(threading.Event(), _none)) == [b"one", b"two", b"", b"\xe9t\xe9"]


def test_reading_can_be_stopped(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(b"line\n" * 1000)
    stop = threading.Event()
    stop.set()
    assert list(sources.FileSource(log).lines(stop, _none)) == []


def test_lines_of_an_earlier_run_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_FILE_TAKES_S", 0.0)
    log = tmp_path / "access.log"
    log.write_bytes(b"a 1\nb 1\na 2\n")
    present = [b"a"]

    def skip(client: bytes) -> bool:
        found = client in present
        if found:
            present.remove(client)
        return found

    assert list(sources.FileSource(log).lines(threading.Event(), skip)) == [b"b 1", b"a 2"]


def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.log", tmp_path):
        with pytest.raises(PipelineError, match="cannot read the access log"):
            sources.FileSource(path)


def test_the_time_of_a_line_is_parsed() -> None:
    times = {
        b'192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1': 1_431_857_103_000,
        b'192.0.2.1 - - [17/May/2015:12:05:03 +0200] "GET / HTTP/1.1" 200 1': 1_431_857_103_000,
        b'192.0.2.1 - - [31/Feb/2015:12:05:03 +0200] "GET / HTTP/1.1" 200 1': None,
        b"torn": None,
    }
    assert {line: time_of(line) for line in times} == times
