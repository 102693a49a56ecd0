"""Partitions on the command line: 'orders', 'orders:0,2' and 'orders:0-3'."""

import pytest

from headrace.cli.failures import USAGE, CommandError
from headrace.cli.offset_plan import MAX_PARTITION, Numbers, missing_place, parse_selection
from tests.support.refusals import wrong_reasons


def numbers(text: str) -> Numbers:
    found = parse_selection([f"t:{text}"], "--topic").topics["t"]
    assert found is not None
    return found


def test_ranges_are_merged() -> None:
    assert numbers("5,0-2,2-3,9-8,007").ranges == (range(4), range(5, 6), range(7, 8))
    selection = parse_selection(["t:0-2", "u", "t:1-4", "u:3"], "--topic")
    assert selection.topics == {"t": Numbers((range(5),)), "u": None}
    assert [selection.takes(("t", number)) for number in (4, 5)] == [True, False]
    assert selection.takes(("u", 9))
    assert not selection.takes(("v", 0))


def test_one_partition_is_known() -> None:
    assert numbers("3").only == 3
    assert [numbers(text).only for text in ("3-4", "3,5", "4-3")] == [None, None, None]


def test_huge_ranges_take_no_memory() -> None:
    selection = parse_selection([f"t:0-{MAX_PARTITION}"], "--topic")
    assert selection.takes(("t", MAX_PARTITION))
    known = [("t", 0), ("t", 1)]
    assert missing_place(selection, known) == "partition 2 of topic 't'"
    assert missing_place(parse_selection(["t:0-1", "u"], "--topic"), known) == "topic 'u'"
    assert missing_place(parse_selection(["t:0-1", "t"], "--topic"), known) is None


@pytest.mark.parametrize("text", ["0-3000000000", "2147483648", "9" * 4500])
def test_no_partition_has_a_larger_number(text: str) -> None:
    with pytest.raises(CommandError) as raised:
        numbers(text)
    assert raised.value.exit_code == USAGE
    assert len(raised.value.what) < 60
    assert raised.value.hint == "The highest possible number is 2147483647."


def test_leading_zeros_are_ignored() -> None:
    assert [numbers(text).only for text in ("0" * 5000, "0" * 5000 + "7", "00")] == [0, 7, 0]


def test_other_text_is_refused() -> None:
    reasons = dict.fromkeys(("", "x", "1-", "-1", "1,,2", "٣"), "is not TOPIC or TOPIC:PARTITIONS")
    assert wrong_reasons(reasons, numbers) == {}
