"""A few short runs; `make checker` plays more and longer ones."""

from pathlib import Path

import pytest

from tests.checker.run import play


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_transactions_keep_their_guarantees(seed: int, tmp_path: Path) -> None:
    verdict = play(seed, 8, tmp_path)
    assert verdict.committed
    assert verdict.copied
    assert not verdict.anomalies, str(verdict)
