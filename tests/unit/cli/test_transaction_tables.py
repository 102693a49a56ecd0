"""Tables and objects of `headrace transactions`."""

import json

import pytest

from headrace.cli.transaction_calls import Transaction
from headrace.cli.transaction_tables import as_json, print_transactions


def transaction(timeout_ms: int) -> Transaction:
    return Transaction(
        transactional_id="billing",
        coordinator=0,
        producer_id=7,
        producer_epoch=0,
        state="Empty",
        timeout_ms=timeout_ms,
        started_ms=None,
        places=(),
    )


def test_a_transaction_with_two_phase_commit_has_no_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    print_transactions([transaction(60_000)], {})
    assert "timeout\t60.000\n" in capsys.readouterr().out
    print_transactions([transaction(2**31 - 1)], {})
    assert "timeout\t-\n" in capsys.readouterr().out
    assert json.loads(json.dumps(as_json(transaction(2**31 - 1))))["timeout_ms"] is None
