"""The checks of the proofs find what is wrong."""

from pathlib import Path

import pytest

from headrace.wire.batch import HEADER_SIZE
from headrace.wire.records import RecordData, build_batch
from tests.cluster.proofs.load import Outcome, Record, Written, parse
from tests.cluster.proofs.reading import Findings, Read, check
from tests.support.replica_logs import Compared, UnequalLogsError, compare

NOTHING = Findings([], [], [], [], [])


def plain(count: int = 4) -> tuple[Written, list[tuple[int, Record]]]:
    """Records that were acknowledged at their offsets, without transactions."""
    written = Written(0, 1)
    records = [written.add(0, -1) for _ in range(count)]
    for offset, record in enumerate(records):
        written.acknowledge(record, offset)
    return written, list(enumerate(records))


def transaction(outcome: Outcome) -> tuple[Written, list[tuple[int, Record]]]:
    written = Written(0, 1)
    written.outcomes.append(outcome)
    return written, [(offset, written.add(0, 0)) for offset in range(3)]


def findings(written: Written, records: list[tuple[int, Record]]) -> Findings:
    return check(Read({0: records}, {0: len(records)}), [written])


def test_a_whole_read_has_no_findings() -> None:
    assert findings(*plain()) == NOTHING


def test_an_acknowledged_record_that_is_missing_is_lost() -> None:
    written, records = plain()
    del records[2]
    assert len(findings(written, records).lost) == 1


def test_a_record_without_an_answer_may_be_missing() -> None:
    written, records = plain()
    written.add(0, -1)
    assert findings(written, records) == NOTHING


def test_a_record_that_is_there_twice_is_duplicated() -> None:
    written, records = plain()
    assert len(findings(written, [*records, (4, records[3][1])]).duplicated) == 1


def test_records_in_another_order_are_found() -> None:
    written, records = plain()
    (first, one), (second, other) = records[1:3]
    written.acknowledge(one, second)
    written.acknowledge(other, first)
    records[1:3] = [(first, other), (second, one)]
    assert len(findings(written, records).disordered) == 1


def test_a_record_at_another_offset_than_acknowledged_is_found() -> None:
    written, records = plain()
    records[3] = (7, records[3][1])
    assert len(findings(written, records).misplaced) == 1


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.UNKNOWN])
def test_a_whole_transaction_may_be_visible(outcome: Outcome) -> None:
    assert findings(*transaction(outcome)) == NOTHING


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.UNKNOWN])
def test_a_transaction_may_be_invisible(outcome: Outcome) -> None:
    assert findings(transaction(outcome)[0], []) == NOTHING


def test_a_committed_transaction_that_is_invisible_is_lost() -> None:
    assert len(findings(transaction(Outcome.COMMITTED)[0], []).lost) == 1


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.UNKNOWN])
def test_a_transaction_that_is_visible_in_part_is_split(outcome: Outcome) -> None:
    written, records = transaction(outcome)
    assert len(findings(written, records[:2]).split) == 1


def test_a_damaged_value_is_found() -> None:
    value = Record(1, 2, 3, 4).value()
    assert parse(value) == (1, 2, 3, 4)
    with pytest.raises(AssertionError, match="damaged"):
        parse(value[:-1])


@pytest.fixture
def replicas(tmp_path: Path) -> dict[str, Path]:
    """Two equal logs of 30 batches, cut into segments at different places."""
    found = {}
    for name, cut in (("one", 10), ("other", 17)):
        found[name] = tmp_path / name
        found[name].mkdir()
        for base, ends in ((0, range(cut)), (cut, range(cut, 30))):
            log = b"".join(build_batch([RecordData(None, b"%d" % number, 0)], base_offset=number) for number in ends)
            (found[name] / f"{base:020}.log").write_bytes(log)
    return found


def test_equal_logs_are_counted(replicas: dict[str, Path]) -> None:
    size = sum(path.stat().st_size for path in replicas["one"].iterdir())
    assert compare("t-0", replicas, first=0, end=30) == Compared(2, 30, size)


def test_logs_that_differ_above_the_high_watermark_are_equal(replicas: dict[str, Path]) -> None:
    last = replicas["other"] / f"{17:020}.log"
    last.write_bytes(last.read_bytes()[:-1])
    assert compare("t-0", replicas, first=0, end=29).batches == 29


@pytest.mark.parametrize("place", [12, HEADER_SIZE + 3], ids=["leader epoch", "record"])
def test_a_byte_that_differs_is_found(replicas: dict[str, Path], place: int) -> None:
    path = replicas["other"] / f"{17:020}.log"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(UnequalLogsError, match="t-0 differs after offset 17"):
        compare("t-0", replicas, first=0, end=30)


def test_a_log_that_ends_too_soon_is_found(replicas: dict[str, Path]) -> None:
    (replicas["other"] / f"{17:020}.log").unlink()
    with pytest.raises(UnequalLogsError, match="other: no batch"):
        compare("t-0", replicas, first=0, end=30)
