"""Coordinators move between Kafka and Headrace with active members and open transactions.

`make coordinators` does the same ten times with more clients and brokers.
"""

import pytest

from tests.clients.transactional.contract import Record
from tests.cluster.conftest import KAFKA, Cluster
from tests.cluster.mixed import MixedCluster
from tests.cluster.proofs.coordinator_load import Outcome, Transaction
from tests.cluster.proofs.coordinators import Plan, Report, move_coordinators, split, table

_PARTITIONS = 2
FIRST, SECOND = Transaction(0, 1), Transaction(0, 2)


def records(*found: tuple[Transaction, int]) -> list[Record]:
    return [Record(partition, transaction.value) for transaction, partition in found]


@pytest.fixture(scope="module")
def report(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Report:
    both = MixedCluster(tmp_path_factory.mktemp("moves"), cluster.zookeeper, {KAFKA: cluster.kafka}, cluster.headrace)
    return move_coordinators(both, Plan(moves=2, consumers=8, producers=2, seed=1, pause_s=1), lambda _: None)


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(280)
def test_commits_never_move_backwards_and_no_transaction_is_split(report: Report) -> None:
    assert report.failures == []
    assert [move.to for move in report.moves] == ["Headrace", "Kafka 7"]
    assert report.transactions["committed"] > 0


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(280)
def test_members_keep_their_partitions_when_their_coordinator_moves(report: Report) -> None:
    assert report.rejoins == 0


@pytest.mark.parametrize(
    ("outcome", "found", "is_wrong"),
    [
        (Outcome.COMMITTED, [0, 1], False),
        (Outcome.COMMITTED, [0], True),
        (Outcome.COMMITTED, [], True),
        (Outcome.COMMITTED, [0, 1, 1], True),
        (Outcome.ABORTED, [], False),
        (Outcome.ABORTED, [1], True),
        (Outcome.UNKNOWN, [0, 1], False),
        (Outcome.UNKNOWN, [], False),
        (Outcome.UNKNOWN, [1], True),
    ],
)
def test_the_check_finds_split_lost_repeated_and_aborted_transactions(
    outcome: Outcome, found: list[int], is_wrong: bool
) -> None:
    wrong = split({FIRST: outcome}, records(*((FIRST, partition) for partition in found)), _PARTITIONS)
    assert bool(wrong) is is_wrong


def test_the_check_finds_transactions_in_the_wrong_order() -> None:
    outcomes = dict.fromkeys((FIRST, SECOND), Outcome.COMMITTED)
    read = records((FIRST, 0), (SECOND, 0), (SECOND, 1), (FIRST, 1))
    assert split(outcomes, read, _PARTITIONS) == ["partition 1: 0:1 after 0:2"]


def test_the_check_finds_records_that_nobody_has_sent() -> None:
    assert split({}, records((FIRST, 0)), _PARTITIONS) == ["0:1 was never sent"]


def test_the_table_names_the_seed_of_a_failure() -> None:
    assert table(Report(seed=5, failures=["lost"]))[-2:] == ["Failed with seed 5:", "lost"]
