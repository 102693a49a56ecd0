"""Parses `listeners`, `advertised.listeners`, `listener.security.protocol.map` and `headrace.http.listener`."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.config.definition import ConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class AddressInUseError(ConfigError):
    """Another program listens at the address that the setting `key` names; `option` is where to choose another one."""

    def __init__(self, key: str, host: str, port: int, option: str) -> None:
        where = f" on {host}" if host else ""
        self.key, self.value = key, port
        self.reason = (
            f"port {port} is in use{where}: stop the program that uses it, or choose another port with {option}"
        )
        ValueError.__init__(self, self.reason)


class Listener(NamedTuple):
    """One NAME://host:port; an empty host stands for every interface."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_listeners(key: str, texts: Sequence[str], *, leave_out: Collection[str] = ()) -> tuple[Listener, ...]:
    """The listeners in `texts` but for those with names in `leave_out`.

    Raises ConfigError that names `key` where one is malformed or given twice, or none is left.
    """
    listeners: list[Listener] = []
    for text in texts:
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not name or not separator or not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ConfigError(key, text, "allowed is NAME://host:port, such as PLAINTEXT://127.0.0.1:9092")
        listener = Listener(name.upper(), host.removeprefix("[").removesuffix("]"), int(port))
        if any(other.name == listener.name for other in listeners):
            raise ConfigError(key, text, f"listener name {listener.name} is used twice; each listener needs its own")
        if listener.name not in leave_out:
            listeners.append(listener)
    if not listeners:
        raise ConfigError(key, ",".join(texts), "at least one listener is needed, such as PLAINTEXT://127.0.0.1:9092")
    return tuple(listeners)


def parse_http_listener(text: str | None) -> tuple[str, int] | None:
    """Host and port of `headrace.http.listener`, None where it is unset; raises ConfigError where it is malformed."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if (colon and not host) or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            "headrace.http.listener", text, "allowed is host:port, such as 127.0.0.1:9404, or a port of 127.0.0.1"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def parse_protocol_map(text: str) -> dict[str, str]:
    """Security protocol by listener name; raises ConfigError where an entry is malformed or the protocol unknown."""
    key = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not name or protocol not in PROTOCOLS:
            raise ConfigError(key, entry, "allowed is NAME:PROTOCOL with one of " + ", ".join(PROTOCOLS))
        protocols[name] = protocol
    return protocols


def check_listeners(
    listeners: Sequence[Listener], advertised: Sequence[Listener], protocols: Mapping[str, str]
) -> None:
    """Raise ConfigError for a listener without a usable protocol, or one advertised where no client finds it."""
    names = {listener.name for listener in listeners}
    for listener in (*listeners, *advertised):
        if listener.name not in protocols:
            raise ConfigError(
                "listeners",
                str(listener),
                f"listener.security.protocol.map has no protocol for {listener.name}; "
                f"add {listener.name}:PLAINTEXT to it",
            )
    for listener in listeners:
        if protocols[listener.name] != "PLAINTEXT":
            raise ConfigError("listeners", str(listener), "allowed is PLAINTEXT: this version has no TLS and no SASL")
    for listener in advertised:
        if listener.name not in names:
            raise ConfigError(
                "advertised.listeners",
                str(listener),
                f"allowed are the names in listeners: {', '.join(sorted(names))}",
            )
        if listener.host in ("", "0.0.0.0", "::"):
            raise ConfigError(
                "advertised.listeners", str(listener), "clients need an address or name that they can connect to"
            )
