"""Requests about transactions: they yield to other clients, and end with theirs."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace import slices
from headrace.broker.apis.transactions.admin import TransactionAdminApis
from headrace.coordinator.transactions.states import TransactionMetadata
from headrace.server.frames import InvalidRequestError

MANY = 1000


def turns(monkeypatch: pytest.MonkeyPatch, *markers: dict[str, Any]) -> int:
    """Return how often WriteTxnMarkers yields to the event loop if every step takes a whole slice."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    apis = TransactionAdminApis(cast(Any, None), cast(Any, None))
    marker = {"producer_id": -1, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    request = SimpleNamespace(markers=[SimpleNamespace(**{**marker, **fields}) for fields in markers])
    answering = apis.write_markers(cast(Any, None), cast(Any, request)).__await__()
    return sum(1 for _ in answering)


def topic(*partitions: int) -> SimpleNamespace:
    return SimpleNamespace(name="t", partition_indexes=partitions)


@pytest.mark.parametrize(
    "markers",
    [
        pytest.param([{"topics": [topic(*range(MANY))]}], id="of invalid producers"),
        pytest.param([{"topics": [topic()] * MANY}], id="without partitions"),
        pytest.param([{"topics": []}] * MANY, id="without topics"),
    ],
)
def test_many_markers_yield_to_other_clients(markers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns(monkeypatch, *markers) >= MANY


def listing(pattern: str, *, has_hung_up: bool) -> Any:
    """Return the reply to ListTransactions of a coordinator with two ids."""
    ids = {name: TransactionMetadata(1, 0, 0, start_ms=0) for name in ("orders", "payments")}
    apis = TransactionAdminApis(cast(Any, SimpleNamespace(all=ids.items)), cast(Any, None))
    context = SimpleNamespace(client=SimpleNamespace(has_hung_up=has_hung_up))
    filters: dict[str, Any] = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
    return apis.list_(cast(Any, context), cast(Any, SimpleNamespace(**filters, transactional_id_pattern=pattern)))


async def test_transactions_are_listed_by_pattern() -> None:
    answer = await listing("o.*", has_hung_up=False)
    assert [item["transactional_id"] for item in answer["transaction_states"]] == ["orders"]


async def test_nothing_is_matched_for_a_client_that_has_hung_up() -> None:
    with pytest.raises(InvalidRequestError, match="hung up"):
        await listing("o.*", has_hung_up=True)
