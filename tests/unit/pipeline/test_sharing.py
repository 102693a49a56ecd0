"""Rows that a job shares between its tables are computed once in a batch."""

from dataclasses import dataclass

import pytest

from headrace.pipeline import shared
from headrace.pipeline.spec import sharing


@dataclass
class Rows:
    persisted: bool = False

    def persist(self) -> None:
        self.persisted = True

    def unpersist(self) -> None:
        self.persisted = False


def test_shared_rows_are_kept_until_the_end_of_the_batch() -> None:
    with sharing.batch() as kept:
        rows = shared(Rows())
        assert (rows.persisted, kept.shared) == (True, True)
    assert not rows.persisted


def test_a_failed_batch_keeps_nothing() -> None:
    rows = Rows()

    def fail() -> None:
        with sharing.batch():
            shared(rows)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not rows.persisted


def test_rows_are_not_kept_outside_of_a_batch() -> None:
    assert not shared(Rows()).persisted
