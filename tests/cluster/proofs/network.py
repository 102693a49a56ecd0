"""Hosts as network namespaces around a router, on which packets from one host to another can be dropped.

Needs root and `ip` (Debian's package iproute2).
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final, Self

_FIRST_NETWORK: Final = 200


class Network:
    """A context manager. This process reaches all hosts, and no cut affects it."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = {name: number for number, name in enumerate(hosts, 1)}
        # Runs at the same time have different names and addresses.
        self._id = f"hr{os.getpid()}"
        self._network = f"10.{_FIRST_NETWORK + os.getpid() % 50}"
        self._router = f"{self._id}-router"
        self._exits = contextlib.ExitStack()

    def address(self, host: str) -> str:
        return f"{self._network}.{self._hosts[host]}.2"

    def launcher(self, host: str) -> list[str]:
        """Return the command that executes another one on a host."""
        return ["ip", "netns", "exec", self._namespace(host)]

    def _namespace(self, host: str) -> str:
        return f"{self._id}-{host}"

    def __enter__(self) -> Self:
        assert shutil.which("ip") is not None, "install iproute2"
        assert os.geteuid() == 0, "network namespaces need root"
        with contextlib.ExitStack() as exits:
            self._exits = exits
            self._add_namespace(self._router)
            _run("ip", "netns", "exec", self._router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            _run("ip", "link", "add", self._id, "type", "veth", "peer", "name", "host0", "netns", self._router)
            exits.callback(_run, "ip", "link", "del", self._id)
            self._give_address(None, self._id, f"{self._network}.0.2")
            self._give_address(self._router, "host0", f"{self._network}.0.1")
            _run("ip", "route", "add", f"{self._network}.0.0/16", "via", f"{self._network}.0.1")
            for host, number in self._hosts.items():
                name, gateway, peer = self._namespace(host), f"{self._network}.{number}.1", f"host{number}"
                self._add_namespace(name)
                _run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", peer, "netns", self._router)
                self._give_address(name, "eth0", self.address(host))
                self._give_address(self._router, peer, gateway)
                _run("ip", "-n", name, "route", "add", "default", "via", gateway)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _add_namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._exits.callback(_run, "ip", "netns", "del", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _give_address(self, namespace: str | None, interface: str, address: str) -> None:
        where = () if namespace is None else ("-n", namespace)
        _run("ip", *where, "addr", "add", f"{address}/24", "dev", interface)
        _run("ip", *where, "link", "set", interface, "up")

    @contextlib.contextmanager
    def cut(self, *ways: tuple[str, str]) -> Iterator[None]:
        """Drop all packets on these ways, each from a host to another, without an error for the sender."""
        with contextlib.ExitStack() as cuts:
            for source, target in ways:
                rule = ("from", self.address(source), "to", self.address(target), "blackhole")
                _run("ip", "-n", self._router, "rule", "add", *rule)
                cuts.callback(_run, "ip", "-n", self._router, "rule", "del", *rule)
            yield


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
