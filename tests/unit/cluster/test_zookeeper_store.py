"""A store without a server. tests/contracts covers the rest."""

import asyncio

import pytest

pytest.importorskip("kazoo")

from headrace.cluster.stores.zookeeper import ZooKeeperStore


async def test_a_reply_may_arrive_in_the_iteration_of_the_event_loop_in_which_the_store_is_closed() -> None:
    store = ZooKeeperStore("127.0.0.1:1", session_timeout_ms=6000, loop=asyncio.get_running_loop())
    request, waiting = (store._client.handler.async_result() for _ in range(2))
    answered, unanswered = store._send(request), store._send(waiting)
    for link in request._callbacks:
        link(request)  # in kazoo's thread
    store._run_posted()
    await store.close()
    assert answered.result() is request
    assert "the session was closed" in str(unanswered.result())
    assert store._client._stopped.is_set()
