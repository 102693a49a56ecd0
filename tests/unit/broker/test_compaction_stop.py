"""The end of compaction in a stopping broker."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from headrace.broker.disks.compaction import Compaction
from headrace.config import BrokerConfig
from headrace.replication.replica_manager import ReplicaManager


async def test_a_stopping_broker_does_not_start_the_cleaner(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Mock()
    monkeypatch.setattr(Compaction, "_load", load)
    partition = SimpleNamespace(log=SimpleNamespace(config=SimpleNamespace(compacts=True)))
    replicas: Any = SimpleNamespace(partitions=lambda: [partition])
    compaction = Compaction(BrokerConfig({}), cast(ReplicaManager, replicas), asyncio.get_running_loop())
    compaction.start()
    await asyncio.sleep(0.01)  # its task waits for the next round
    await compaction.stop()
    load.assert_not_called()
