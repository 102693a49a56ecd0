"""Find out within seconds whether a port speaks Kafka's protocol, and if not, which protocol it speaks.

librdkafka retries a wrong port until a request times out, and cannot say why. Any Kafka broker replies to an
ApiVersions request without authentication.
"""

import contextlib
import socket
import struct
import time

_PATIENCE_S = 1.0
"""After this long without a reply, try HTTP: a web server may be waiting for the end of a line."""
_TIMEOUT_S = 5.0
"""Maximum time for a busy broker to reply."""
_CORRELATION_ID = 0x48445243

_CLIENT_ID = b"headrace-cli"
_BODY = struct.pack(">hhih", 18, 0, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
_API_VERSIONS = struct.pack(">i", len(_BODY)) + _BODY
_HTTP_REQUEST = b"HEAD / HTTP/1.0\r\n\r\n"
_MYSQL_HANDSHAKE = 10


def why_not_kafka(host: str, port: int, connect_timeout_s: float) -> str | None:
    """Return what is wrong with a port ('speaks HTTP, not Kafka'), or None if a broker replies.

    Raises OSError if the connection fails.
    """
    with socket.create_connection((host, port), timeout=connect_timeout_s) as connection:
        try:
            connection.sendall(_API_VERSIONS)
            answer = _read(connection, _PATIENCE_S)
            if not answer and answer is not None and _is_web_server(host, port):
                return "speaks HTTP, not Kafka"
            if not answer and answer is not None:
                answer = _read(connection, _TIMEOUT_S - _PATIENCE_S)
        except OSError:
            answer = None
    if answer is None:
        return "closes the connection without a reply: does it expect TLS?"
    if not answer:
        return f"accepts connections, but did not reply within {_TIMEOUT_S:.0f} s"
    return _why_not_kafkas_answer(answer)


def _read(connection: socket.socket, timeout_s: float) -> bytes | None:
    """Return the first 8 bytes, or fewer after a timeout; None if the server closed the connection without a reply."""
    data = b""
    deadline = time.monotonic() + timeout_s
    while len(data) < 8:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            chunk = connection.recv(8 - len(data))
        except TimeoutError:
            break
        if not chunk:
            return data or None
        data += chunk
    return data


def _is_web_server(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_PATIENCE_S) as connection:
        connection.sendall(_HTTP_REQUEST)
        return (_read(connection, _PATIENCE_S) or b"").startswith(b"HTTP/")
    return False


def _why_not_kafkas_answer(answer: bytes) -> str | None:
    if answer[4:8] == struct.pack(">i", _CORRELATION_ID):
        return None
    if answer.startswith((b"HTTP/", b"<!DOCTYP", b"<html")):
        return "speaks HTTP, not Kafka"
    if answer.startswith(b"SSH-"):
        return "speaks SSH, not Kafka"
    if answer[:2] == b"\x15\x03":
        return "expects TLS, which these commands do not support"
    if answer[4:5] == bytes([_MYSQL_HANDSHAKE]) and answer[3:4] == b"\0":
        return "speaks MySQL's protocol, not Kafka's"
    if answer.startswith((b"-ERR", b"-DENIED")):
        return "speaks Redis's protocol, not Kafka's"
    text = answer.decode("ascii", "replace")
    return f"does not speak Kafka's protocol: it replied {text if text.isprintable() else answer.hex()!r}"
