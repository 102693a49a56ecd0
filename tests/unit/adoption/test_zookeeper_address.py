"""The address of ZooKeeper in commands."""

import pytest

from headrace.adoption.zookeeper_tree import ZooKeeperTree
from headrace.errors import KafkaError

pytest.importorskip("kazoo")


@pytest.mark.parametrize("address", ["", "::", "127.0.0.1:abc"])
def test_a_malformed_address_is_refused_with_the_form(address: str) -> None:
    with pytest.raises(KafkaError, match=f"^'{address}' is not an address of ZooKeeper, HOST:PORT or HOST:PORT/PATH: "):
        ZooKeeperTree(address)
