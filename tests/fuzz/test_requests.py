"""Random requests of every API and version get an answer or a closed connection, never an unhandled exception.

The handlers are those of a complete broker. Unexpected exceptions appear in the log as errors with a traceback; any of
these fails a test.
"""

import asyncio
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.node import Node
from headrace.config import load
from headrace.server import dispatch
from headrace.server.context import ClientInfo
from headrace.server.frames import InvalidRequestError, Parts
from headrace.storage.files.log_file import FileSlice
from headrace.testing import TEST_SETTINGS
from headrace.wire.apis import ApiKey, request_encoder, response_reader, schema
from tests.fuzz.entities import TOPIC, requests
from tests.support.examples import examples

TIMEOUT_S: Final = 0.05
"""How long to wait for an answer; Fetch and JoinGroup may take longer."""
CORRELATION_ID: Final = 77


class Fuzzed:
    """A broker without sockets."""

    def __init__(self, data: Path) -> None:
        self._runner = asyncio.Runner()
        config = load(defaults={"listeners": "PLAINTEXT://127.0.0.1:0", **TEST_SETTINGS, "num.partitions": "2"})
        self._node = self._runner.run(self._start(config, data))
        self.offered = [
            (ApiKey(key), version)
            for key, offered in self._node._dispatcher.offered.items()
            for version in range(offered.lowest, offered.highest + 1)
        ]

    async def _start(self, config: Any, data: Path) -> Node:
        node = Node(config, [data], durable_metadata=False, owns_process=False)
        await node.start()
        return node

    def ask(self, frame: bytes, timeout_s: float = TIMEOUT_S) -> Parts | None:
        """Return the answer; None if the connection would be closed or the answer takes longer."""
        return self._runner.run(self._ask(frame, timeout_s))

    async def _ask(self, frame: bytes, timeout_s: float) -> Parts | None:
        client = ClientInfo(listener="PLAINTEXT", host="192.0.2.1", port=7, local_address=("192.0.2.2", 9092))
        try:
            answer = self._node._dispatcher.handle(client, memoryview(frame))
            if isinstance(answer, list):
                return answer
            return await asyncio.wait_for(answer, timeout_s)
        except (InvalidRequestError, TimeoutError):
            return None

    def close(self) -> None:
        self._runner.run(self._node.stop())
        self._runner.close()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    fuzzed = Fuzzed(tmp_path_factory.mktemp("fuzzed"))
    topic = {"name": TOPIC, "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
    request = {"topics": [topic], "timeout": 1000, "validate_only": False}
    assert fuzzed.ask(frame(ApiKey.CREATE_TOPICS, 4, request), timeout_s=30)
    yield fuzzed
    fuzzed.close()


def header(api_key: int, version: int) -> bytes:
    start = struct.pack(">hhih", api_key, version, CORRELATION_ID, 4) + b"fuzz"
    return start + b"\x00" if schema(api_key, version).has_flexible_request_header else start


def frame(api_key: int, version: int, fields: dict[str, Any]) -> bytes:
    out = bytearray(header(api_key, version))
    request_encoder(ApiKey(api_key), version)(out, fields)
    return bytes(out)


def check(answer: Parts | None, api_key: int, version: int) -> None:
    """Check that an answer, if any, is complete and can be decoded."""
    if not answer:
        return
    content = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in answer)
    size, correlation_id = struct.unpack_from(">ii", content)
    assert size == len(content) - 4
    assert correlation_id == CORRELATION_ID
    start = 9 if schema(api_key, version).has_flexible_response_header else 8
    _, read = response_reader(ApiKey(api_key), version)(content, start)
    assert start + read == len(content)


many = settings(
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture
def no_bugs(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR)
    return caplog


def assert_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    """Check that no handler raised an unexpected exception; show its traceback."""
    unhandled = [record for record in caplog.records if record.exc_info and record.name == dispatch.__name__]
    caplog.clear()
    assert not unhandled, "\n".join(logging.Formatter().format(record) for record in unhandled)


@many
@given(content=st.binary(max_size=200))
def test_any_bytes(fuzzed: Fuzzed, no_bugs: pytest.LogCaptureFixture, content: bytes) -> None:
    fuzzed.ask(content)
    assert_no_bug(no_bugs)


@many
@given(data=st.data())
def test_any_body(fuzzed: Fuzzed, no_bugs: pytest.LogCaptureFixture, data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from(fuzzed.offered))
    check(fuzzed.ask(header(api_key, version) + data.draw(st.binary(max_size=120))), api_key, version)
    assert_no_bug(no_bugs)


@many
@given(data=st.data())
def test_any_values(fuzzed: Fuzzed, no_bugs: pytest.LogCaptureFixture, data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from(fuzzed.offered))
    check(fuzzed.ask(frame(api_key, version, data.draw(requests(api_key, version)))), api_key, version)
    assert_no_bug(no_bugs)


@many
@given(data=st.data())
def test_any_values_with_bytes_changed_or_cut(
    fuzzed: Fuzzed, no_bugs: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    api_key, version = data.draw(st.sampled_from(fuzzed.offered))
    start = len(header(api_key, version))
    content = bytearray(frame(api_key, version, data.draw(requests(api_key, version))))
    for _ in range(data.draw(st.integers(1, 3))):
        if len(content) > start:
            content[data.draw(st.integers(start, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(start, len(content)))
    check(fuzzed.ask(bytes(content[:cut])), api_key, version)
    assert_no_bug(no_bugs)
