"""The address of ZooKeeper in commands."""

from types import SimpleNamespace
from typing import NoReturn

import pytest

from headrace.adoption.zookeeper_tree import ZooKeeperTree
from headrace.errors import KafkaError

pytest.importorskip("kazoo")


def test_a_malformed_address_is_refused_with_the_form() -> None:
    for address in ("", "::", "127.0.0.1:abc"):
        with pytest.raises(KafkaError, match=f"^'{address}' is not a ZooKeeper address, HOST:PORT or HOST:PORT/PATH: "):
            ZooKeeperTree(address)


def test_a_lost_connection_is_an_error_of_the_command() -> None:
    from kazoo.exceptions import ConnectionLoss

    def lose(_: str) -> NoReturn:
        raise ConnectionLoss

    tree = ZooKeeperTree("127.0.0.1:1")
    closed: list[str] = []
    tree._client = SimpleNamespace(
        start=lambda timeout: None,
        get=lose,
        stop=lambda: closed.append("stop"),
        close=lambda: closed.append("close"),
    )
    with pytest.raises(KafkaError, match=r"lost or refused a request \(ConnectionLoss\)"), tree:
        tree.cluster_id()
    assert closed == ["stop", "close"]
