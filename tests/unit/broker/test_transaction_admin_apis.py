"""Requests about transactions yield to other clients."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace import slices
from headrace.broker.apis.transactions.admin import TransactionAdminApis

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
