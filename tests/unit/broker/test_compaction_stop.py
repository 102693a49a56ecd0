"""Cleaner loops in a broker whose settings change, and their end."""

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


async def test_loops_share_memory_and_rate_by_their_number_at_the_start() -> None:
    config = BrokerConfig({"log.cleaner.threads": "2", "log.cleaner.io.max.bytes.per.second": "1000"})
    replicas: Any = SimpleNamespace(hosted=list)
    compaction = Compaction(config, cast(ReplicaManager, replicas), asyncio.get_running_loop())
    compaction.start()
    config.reconfigure({"log.cleaner.threads": "4", "log.cleaner.io.max.bytes.per.second": "2000"}, {})
    assert compaction._settings().bytes_per_second == 1000
    await compaction.stop()
