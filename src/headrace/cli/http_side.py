"""Gets JSON from a Headrace broker's HTTP listener: data that no Kafka request returns."""

import ipaddress
import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from headrace.cli.cluster import REQUEST_TIMEOUT_S, Cluster
from headrace.cli.failures import CommandError

_SETTING = "headrace.http.listener"
_TIMEOUT_S = 10.0


class HttpSide:
    """The JSON routes of one broker."""

    def __init__(self, address: str) -> None:
        self.address = address.removeprefix("http://").rstrip("/")
        # Never reach a broker through the environment's proxy.
        self._opener = build_opener(ProxyHandler({}))

    def get(self, path: str, expected: str, **query: object) -> Any:
        """Return the JSON object, which must have the field `expected`; None if the broker replies 404.

        Raises CommandError.
        """
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        try:
            with self._opener.open(f"http://{self.address}{path}?{asked}", timeout=_TIMEOUT_S) as answer:
                found = json.load(answer)
            if not isinstance(found, dict) or expected not in found:
                raise ValueError(f"it has no field '{expected}', so it is not from a Headrace broker")
            return found
        except HTTPError as error:
            if error.code == 404 and _is_of_headrace(error):
                return None
            raise CommandError(f"http://{self.address}{path}: {error.code} {error.reason}") from None
        except (URLError, OSError, HTTPException, ValueError, RecursionError) as error:
            raise self.invalid(error.reason if isinstance(error, URLError) else error) from None

    def invalid(self, reason: object) -> CommandError:
        """Return the error for a missing reply, or for one that no Headrace broker sends."""
        return CommandError(
            f"no valid reply from the broker's HTTP listener at {self.address}: {_one_line(reason)}",
            f"Check the broker's {_SETTING}, or give the address with --http.",
        )


def _is_of_headrace(error: HTTPError) -> bool:
    """Return False for the error page of another server."""
    try:
        body = json.load(error)
    except (OSError, HTTPException, ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.keys() == {"error", "message"}


def _one_line(reason: object) -> str:
    text = " ".join(str(reason).split())
    return text if text.isprintable() and text else type(reason).__name__


def http_side(cluster: Cluster, broker_id: int, host: str, named: str | None) -> HttpSide | None:
    """Return the HTTP listener of a broker: `named` if given, or the address in its settings, if any."""
    if named:
        return HttpSide(named)
    address = _address(broker_setting(cluster, broker_id, _SETTING), host)
    return None if address is None else HttpSide(address)


def broker_setting(cluster: Cluster, broker_id: int, name: str) -> str | None:
    """Return the value of a setting; None if the broker does not have it, or if the request fails."""
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    try:
        future = cluster.admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
        entry = future.result().get(name)
    except KafkaException:
        return None  # clients without the right to read settings may still read groups
    return entry.value if entry else None


def _address(listener: str | None, broker_host: str) -> str | None:
    """Return the address of a listener as seen from here; None if unknown."""
    if not listener:
        return None
    host, _, port = listener.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if port in ("", "0"):
        return None
    if host in ("0.0.0.0", "::"):
        host = broker_host
    elif _is_loopback(host) and not _is_loopback(broker_host):
        return None  # only the broker's own host can reach it
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
