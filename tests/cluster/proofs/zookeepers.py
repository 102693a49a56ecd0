"""ZooKeeper servers from Kafka's jars: one, or an ensemble."""

import contextlib
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from tests.adoption.kafka import Java, zookeeper_jars
from tests.support.ports import free_port
from tests.support.waiting import wait_for


class Host(NamedTuple):
    """Where a server runs."""

    address: str = "127.0.0.1"
    launcher: Sequence[str] = ()


class Ensemble:
    """Servers 1, 2, ... as a context manager, which starts all of them."""

    def __init__(self, directory: Path, hosts: Sequence[Host]) -> None:
        self._ports = {number: (host.address, free_port()) for number, host in enumerate(hosts, 1)}
        settings = "tickTime=1000\ninitLimit=20\nsyncLimit=5\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        settings += "4lw.commands.whitelist=srvr\n"
        if len(hosts) > 1:
            settings += "".join(
                f"server.{number}={host.address}:{free_port()}:{free_port()}\n" for number, host in enumerate(hosts, 1)
            )
        self._servers: dict[int, Java] = {}
        self._settings: dict[int, Path] = {}
        for number, (address, port) in self._ports.items():
            place = directory / f"zookeeper-{number}"
            (place / "data").mkdir(parents=True)
            (place / "data" / "myid").write_text(f"{number}\n")
            self._settings[number] = place / "zoo.cfg"
            self._settings[number].write_text(
                f"{settings}dataDir={place / 'data'}\nclientPort={port}\nclientPortAddress={address}\n"
            )
            launcher = hosts[number - 1].launcher
            self._servers[number] = Java(zookeeper_jars(), place / "zookeeper.log", launcher=launcher)

    @property
    def numbers(self) -> list[int]:
        return list(self._servers)

    @property
    def address(self) -> str:
        """The value of `zookeeper.connect`."""
        return ",".join(f"{address}:{port}" for address, port in self._ports.values())

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self._servers[number].start(
                "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._settings[number])
            )

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            self._servers[number].end(signal.SIGKILL)

    def mode(self, number: int) -> str | None:
        """Return `leader`, `follower` or `standalone`; None if the server does not serve."""
        with contextlib.suppress(OSError), socket.create_connection(self._ports[number], timeout=2) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            for line in answer.decode().splitlines():
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ")
        return None

    def leader(self) -> int:
        """Wait until a server leads, and return it."""
        return wait_for(
            lambda: next((number for number in self.numbers if self.mode(number) == "leader"), 0),
            "a leader of the ensemble",
            timeout_s=120,
        )

    def __enter__(self) -> Self:
        self.start(*self.numbers)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(*self.numbers)
