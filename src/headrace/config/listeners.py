"""Parse `listeners`, `advertised.listeners`, `listener.security.protocol.map` and `headrace.http.listener`."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.config.definition import ConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PORT: Final = re.compile("[0-9]{1,5}")


class AddressInUseError(ConfigError):
    """The address in the setting `key` is in use; `option` is the setting or command-line option to suggest."""

    def __init__(self, key: str, host: str, port: int, option: str) -> None:
        where = f" on {host}" if host else ""
        self.key, self.value = key, port
        self.reason = (
            f"port {port} is in use{where}: stop the program that uses it, or choose another port with {option}"
        )
        ValueError.__init__(self, self.reason)


class Listener(NamedTuple):
    """One NAME://host:port; an empty host means all interfaces."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(key: str, texts: Sequence[str], *, leave_out: Collection[str] = ()) -> tuple[Listener, ...]:
    """Parse listeners, and drop those named in `leave_out`.

    Raises ConfigError if one is malformed, a name repeats, or none is left.
    """
    listeners: list[Listener] = []
    for text in texts:
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not name or not separator or not colon or not _PORT.fullmatch(port) or int(port) > 65535:
            raise ConfigError(
                key, text, "must be NAME://host:port with a port up to 65535, such as PLAINTEXT://127.0.0.1:9092"
            )
        listener = Listener(name.upper(), host.removeprefix("[").removesuffix("]"), int(port))
        if any(other.name == listener.name for other in listeners):
            raise ConfigError(key, text, f"listener name {listener.name} is used twice")
        if listener.name not in leave_out:
            listeners.append(listener)
    if not listeners:
        which = "listener outside controller.listener.names" if texts else "listener"
        raise ConfigError(
            key, ",".join(texts), f"must contain at least one {which}, such as PLAINTEXT://127.0.0.1:9092"
        )
    return tuple(listeners)


def parse_http_listener(text: str | None) -> tuple[str, int] | None:
    """Return the host and port of `headrace.http.listener`, or None if it is unset. Raises ConfigError."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if (colon and not host) or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(
            "headrace.http.listener",
            text,
            "must be host:port with a port up to 65535, such as 127.0.0.1:9404, or a port alone, for 127.0.0.1",
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Return security protocols by listener name. Raises ConfigError for a malformed entry or unknown protocol."""
    key = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not name or protocol not in PROTOCOLS:
            raise ConfigError(key, entry, "must be NAME:PROTOCOL, where PROTOCOL is one of " + ", ".join(PROTOCOLS))
        protocols[name] = protocol
    return protocols


def check_listeners(
    listeners: Sequence[Listener], advertised: Sequence[Listener], protocols: Mapping[str, str]
) -> None:
    """Raise ConfigError if a listener has no supported protocol, or if clients cannot use an advertised listener."""
    names = {listener.name for listener in listeners}
    for listener in listeners:
        if listener.name not in protocols:
            raise ConfigError(
                "listeners",
                str(listener),
                f"listener.security.protocol.map has no protocol for {listener.name}; add {listener.name}:PLAINTEXT",
            )
        if protocols[listener.name] != "PLAINTEXT":
            raise ConfigError("listeners", str(listener), "must be PLAINTEXT: TLS and SASL are not supported")
    for listener in advertised:
        if listener.name not in names:
            raise ConfigError(
                "advertised.listeners",
                str(listener),
                f"must begin with a name from listeners: {', '.join(sorted(names))}",
            )
        if listener.host in ("", "0.0.0.0", "::"):
            raise ConfigError(
                "advertised.listeners", str(listener), "must be an address or name that clients can connect to"
            )
