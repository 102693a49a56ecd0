"""Frames that are not requests: the broker closes the connection as Kafka does, and logs the client and the reason."""

import struct
from typing import Final

import pytest

from tests.hostile.conftest import BrokerLog, Bystander
from tests.hostile.raw import (
    API_VERSIONS,
    CLIENT_ID,
    METADATA,
    PRODUCE,
    RawConnection,
    array,
    framed,
    request,
    string,
)

NO_TAGS = b"\x00"

REFUSED: Final = {
    "negative size": (struct.pack(">i", -1), "a request announces -1 bytes"),
    "size over socket.request.max.bytes": (struct.pack(">i", 104_857_601), "socket.request.max.bytes"),
    "empty": (struct.pack(">i", 0), "shorter than its header"),
    "shorter than a header": (framed(b"abc"), "shorter than its header"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "socket.request.max.bytes"),
    "client id longer than the request": (framed(struct.pack(">hhih", 18, 0, 1, 500) + b"abc"), "client id"),
    "unknown API": (framed(request(999, 0, b"")), "unsupported API key 999"),
    "former API between brokers": (framed(request(4, 0, b"")), "unsupported API key 4"),
    "unknown version": (framed(request(METADATA, 99, NO_TAGS)), "version 99 of METADATA"),
    "removed version": (framed(request(PRODUCE, 0, b"")), "version 0 of PRODUCE"),
    "truncated array": (framed(request(METADATA, 4, struct.pack(">i", 5) + string("x"))), "METADATA v4 cannot be read"),
    "header with too many tags": (
        framed(request(METADATA, 12, b"\x65" + b"\x05\x00" * 101)),
        "the request's header has 101 tagged fields; at most 100 are allowed",
    ),
    "string over 32,767 bytes": (
        framed(request(METADATA, 12, NO_TAGS + b"\x02" + bytes(16) + b"\x81\x80\x02" + b"a" * 32_768 + bytes(4))),
        "METADATA v12 cannot be read: a string has 32768 bytes; at most 32767 are allowed",
    ),
    "string over 32,767 bytes after the last array": (
        framed(request(API_VERSIONS, 3, NO_TAGS + b"\x81\x80\x02" + b"a" * 32_768 + b"\x021" + NO_TAGS)),
        "API_VERSIONS v3 cannot be read: a string has 32768 bytes; at most 32767 are allowed",
    ),
    "millions of tagged fields": (
        framed(request(METADATA, 12, NO_TAGS + b"\x01" + bytes(2) + b"\x80\x89\x7a" + b"\x05\x00" * 2_000_000)),
        "METADATA v12 has more than 100000 unknown tagged fields",
    ),
    "records longer than the request": (
        framed(
            request(
                PRODUCE,
                8,
                string(None)
                + struct.pack(">hi", -1, 1000)
                + array(string("t") + array(struct.pack(">ii", 0, 10**9) + b"abc")),
            )
        ),
        "PRODUCE v8 cannot be read",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_request_closes_the_connection(
    name: str, address: tuple[str, int], bystander: Bystander, log: BrokerLog
) -> None:
    content, reason = REFUSED[name]
    with RawConnection(*address) as connection:
        connection.send(content)
        assert connection.is_closed_by_broker()
        log.has_warning("Closing connection", f"{address[0]}:{connection.local_port}", reason)
    bystander.check()


def test_the_log_has_the_client_id_of_an_earlier_request(address: tuple[str, int], topic: str, log: BrokerLog) -> None:
    with RawConnection(*address) as connection:
        connection.auto_create_topic(topic)
        connection.send(struct.pack(">i", -1))
        assert connection.is_closed_by_broker()
        log.has_warning(
            "Closing connection", CLIENT_ID, f"{address[0]}:{connection.local_port}", "a request announces -1 bytes"
        )


def test_a_client_that_disconnects_inside_a_request_is_forgotten(
    address: tuple[str, int], bystander: Bystander, log: BrokerLog
) -> None:
    with RawConnection(*address) as connection:
        connection.send(struct.pack(">i", 1000) + b"only the beginning")
        port = connection.local_port
    log.has_warning("Closing connection", f"{address[0]}:{port}", "disconnected in the middle of a request")
    bystander.check()


def test_a_future_version_of_api_versions_is_answered_in_version_0(
    address: tuple[str, int], bystander: Bystander
) -> None:
    """KIP-511: UNSUPPORTED_VERSION with the supported versions, so that the client can retry."""
    with RawConnection(*address) as connection:
        connection.send(framed(request(API_VERSIONS, 32_767, NO_TAGS)))
        answer = connection.receive()
        error, count, api_key, lowest, highest = struct.unpack_from(">hihhh", answer, 4)
        assert (error, count, api_key, lowest) == (35, 1, API_VERSIONS, 0)
        assert highest >= 4
        # the retry works on the same connection
        assert connection.call(API_VERSIONS, 0, b"")[:2] == b"\x00\x00"


def test_an_invalid_client_software_name_is_refused(address: tuple[str, int]) -> None:
    flexible_string = b"\x05-bad"
    with RawConnection(*address) as connection:
        connection.send(framed(request(API_VERSIONS, 3, NO_TAGS + flexible_string + b"\x021" + NO_TAGS)))
        (error,) = struct.unpack_from(">h", connection.receive(), 4)
    assert error == 42


def test_a_client_id_that_is_not_utf_8_is_served(address: tuple[str, int]) -> None:
    with RawConnection(*address) as connection:
        connection.send(framed(struct.pack(">hhih", API_VERSIONS, 0, 1, 3) + b"\xff\xfe\xfd"))
        assert connection.receive()[4:6] == b"\x00\x00"


def test_bytes_after_a_request_are_ignored(address: tuple[str, int]) -> None:
    with RawConnection(*address) as connection:
        assert connection.call(API_VERSIONS, 0, b"trailing bytes")[:2] == b"\x00\x00"


@pytest.mark.parametrize(
    "content",
    [b"\x64" + b"\x05\x00" * 100 + b"\x02c\x021" + NO_TAGS, NO_TAGS + b"\x02c\x021" + b"\x02\x00\x01a\x05\x02ab"],
    ids=["header", "body"],
)
def test_unknown_tagged_fields_are_ignored(content: bytes, address: tuple[str, int]) -> None:
    """KIP-482: newer clients may send them."""
    with RawConnection(*address) as connection:
        assert connection.call(API_VERSIONS, 3, content)[:2] == b"\x00\x00"
