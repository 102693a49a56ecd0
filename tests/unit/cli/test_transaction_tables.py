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


@pytest.mark.parametrize(("timeout_ms", "shown"), [(60_000, "60.000"), (2**31 - 1, "-")])
def test_a_transaction_with_two_phase_commit_has_no_timeout(
    capsys: pytest.CaptureFixture[str], timeout_ms: int, shown: str
) -> None:
    print_transactions([transaction(timeout_ms)], {})
    assert f"timeout\t{shown}\n" in capsys.readouterr().out


def test_a_timeout_of_two_phase_commit_is_null_in_json() -> None:
    assert json.loads(json.dumps(as_json(transaction(2**31 - 1))))["timeout_ms"] is None
