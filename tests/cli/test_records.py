"""Producing and consuming through pipes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Headrace


def _consumed(headrace: Headrace, topic: str, *words: str) -> list[str]:
    return headrace("consume", topic, "--until-end", "--quiet", *words).stdout.splitlines()


def _consumed_json(headrace: Headrace, topic: str, *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in _consumed(headrace, topic, "--jsonl", *words)]


def test_lines_are_returned_unchanged(headrace: Headrace, topic: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes("eins\r\n\nzwölf".encode())
    second.write_bytes(b"drei\n")
    produced = headrace("produce", topic, str(first), "-", str(second), "-p", "0", stdin="vier\n")
    assert produced.stdout == ""
    assert produced.stderr.startswith(f"5 records (18 B) to {topic} in ")
    assert _consumed(headrace, topic) == ["eins", "", "zwölf", "vier", "drei"]


def test_the_offset_of_a_record_is_printed(headrace: Headrace, topic: str) -> None:
    assert (
        headrace("produce", topic, "-p", "1", stdin="a\n").stderr
        == f"1 record (1 B) to {topic}, partition 1 offset 0\n"
    )
    result = json.loads(headrace("produce", topic, "-p", "1", "--json", stdin="b\nc\n").stdout)
    assert (result["records"], result["bytes"], result["last_offsets"]) == (2, 2, {"1": 2})


def test_keys_and_headers(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "--key-separator", "\\t", "-H", "a=1", "-H", "a=2", stdin="alice\ttea\nbob\tmilk\n")
    headrace("produce", topic, "--key", "carol", stdin="wine\n")
    records = {record["key"]: record for record in _consumed_json(headrace, topic)}
    assert {key: record["value"] for key, record in records.items()} == {"alice": "tea", "bob": "milk", "carol": "wine"}
    assert records["bob"]["headers"] == [["a", "1"], ["a", "2"]]
    assert records["carol"]["headers"] == []


def test_a_line_without_the_separator_is_reported_after_earlier_lines_are_sent(headrace: Headrace, topic: str) -> None:
    failed = headrace("produce", topic, "--key-separator", ":", stdin="a:1\noops\n", status=1)
    assert failed.stderr == "Error: standard input, line 2: no key: the separator ':' is missing\n"
    assert _consumed(headrace, topic) == ["1"]


def test_null_is_not_empty(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "-p", "0", "--key-separator", ":", "--null", "NIL", stdin="k:NIL\nk:\nNIL:v\n:v\n")
    assert _consumed(headrace, topic, "--print-key", "--null", "-", "--separator", "|") == ["k|-", "k|", "-|v", "|v"]
    records = _consumed_json(headrace, topic)
    assert [(record["key"], record["value"]) for record in records] == [("k", None), ("k", ""), (None, "v"), ("", "v")]


def test_produce_accepts_the_json_of_consume(headrace: Headrace, topic: str, new_name: Callable[[], str]) -> None:
    lines = [
        {
            "key": "k",
            "value": "v",
            "headers": [["h", "1"], ["h", None]],
            "timestamp": 1_763_719_200_000,
            "partition": 1,
        },
        {"key": {"base64": "/wA="}, "value": {"base64": "gIE="}, "timestamp": "2025-11-21T10:00:01Z", "partition": 0},
        {"key": "", "value": None, "timestamp": 1_763_719_202_000, "partition": 1},
    ]
    headrace("produce", topic, "--jsonl", "--keep-partitions", stdin="".join(json.dumps(line) + "\n" for line in lines))
    first = headrace("consume", topic, "--until-end", "--jsonl").stdout

    copy = new_name()
    headrace("topics", "create", copy, "--partitions", "2")
    headrace("produce", copy, "--jsonl", "--keep-partitions", stdin=first)
    originals = [json.loads(line) for line in first.splitlines()]
    assert len(originals) == 3
    assert sorted(_consumed_json(headrace, copy), key=_place) == sorted(
        ({**record, "topic": copy} for record in originals), key=_place
    )
    assert {record["timestamp"] for record in originals} == {1_763_719_200_000, 1_763_719_201_000, 1_763_719_202_000}


def _place(record: dict[str, object]) -> tuple[object, object]:
    return record["partition"], record["offset"]


def test_a_missing_topic_is_created_only_on_request(headrace: Headrace, new_name: Callable[[], str]) -> None:
    name = new_name()
    assert "--create creates it" in headrace("produce", name, stdin="a\n", status=1).stderr
    headrace("produce", name, "--create", stdin="a\n")
    assert _consumed(headrace, name) == ["a"]


def test_every_compression_and_every_kind_of_acknowledgement_works(headrace: Headrace, topic: str) -> None:
    options = [f"-z {codec}" for codec in ("gzip", "snappy", "lz4", "zstd")]
    options += ["--acks 1", "--acks all --idempotent", "--no-idempotent", "--acks 0"]
    for option in options:
        lines = [f"{option} {number}" for number in range(100)]
        headrace("produce", topic, "-p", "0", *option.split(), stdin="\n".join(lines))
        assert _consumed(headrace, topic)[-100:] == lines


def test_a_record_over_the_limit_is_refused_in_one_line(headrace: Headrace, topic: str) -> None:
    headrace("topics", "alter", topic, "--config", "max.message.bytes=1000")
    failed = headrace("produce", topic, stdin="x" * 2000, status=1)
    assert "MSG_SIZE_TOO_LARGE" in failed.stderr
    assert "max.message.bytes" in failed.stderr


@pytest.fixture
def hourly(headrace: Headrace, topic: str) -> str:
    """A topic with hourly records in partition 0, from 2025-11-21 10:00 to 14:00 UTC."""
    headrace("topics", "alter", topic, "--config", "retention.ms=-1")
    lines = [f'{{"value": "{hour}", "timestamp": "2025-11-21T{hour}:00:00Z"}}\n' for hour in range(10, 15)]
    headrace("produce", topic, "-p", "0", "--jsonl", stdin="".join(lines))
    return topic


def test_consume_starts_at_the_given_position(headrace: Headrace, hourly: str) -> None:
    expected = {
        "beginning": "10 11 12 13 14",
        "end": "",
        "3": "13 14",
        "99": "",
        "-2": "13 14",
        "2025-11-21T11:30:00Z": "12 13 14",
        "2025-11-21T12:00": "12 13 14",
        "@1763726400000": "12 13 14",
        "1h ago": "",
    }
    starts = ((start, _consumed(headrace, hourly, "--from", start, "--partition", "0")) for start in expected)
    assert {start: " ".join(values) for start, values in starts} == expected


def test_consume_stops_after_the_given_number_of_records(headrace: Headrace, hourly: str) -> None:
    result = headrace("consume", hourly, "-n", "2")
    assert result.stdout == "10\n11\n"
    assert result.stderr.startswith(f"2 records (4 B) from {hourly} in ")


def test_too_few_records_before_the_timeout_are_a_failure(headrace: Headrace, hourly: str) -> None:
    result = headrace("consume", hourly, "-n", "6", "--timeout", "0.5", status=1)
    assert len(result.stdout.splitlines()) == 5
    assert "read only 5 of 6 records" in result.stderr
    headrace("consume", hourly, "--timeout", "0.5")


def test_fields_are_printed_in_columns_or_with_a_template(headrace: Headrace, hourly: str) -> None:
    columns = ["--print-timestamp", "--print-partition", "--print-offset", "--print-headers", "--print-key"]
    assert _consumed(headrace, hourly, *columns, "-n", "1") == ["1763719200000\t0\t0\t\tnull\t10"]
    assert _consumed(headrace, hourly, "-n", "1", "--format", "{topic}/{offset} {time}\\t{value}") == [
        f"{hourly}/0 2025-11-21T10:00:00.000Z\t10"
    ]


def test_a_group_resumes_at_its_offset(headrace: Headrace, hourly: str) -> None:
    group = ["--group", f"{hourly}-group"]
    assert headrace("consume", hourly, *group, "-n", "2").stdout.split() == ["10", "11"]
    assert _consumed(headrace, hourly, *group) == ["12", "13", "14"]
    assert _consumed(headrace, hourly, *group) == []
    headrace("produce", hourly, "-p", "0", stdin="15\n")
    assert _consumed(headrace, hourly, *group) == ["15"]


def test_a_new_group_starts_at_the_given_position(headrace: Headrace, hourly: str) -> None:
    assert _consumed(headrace, hourly, "--group", f"{hourly}-late", "--from", "2025-11-21T13:00:00Z") == ["13", "14"]


def test_a_missing_partition_is_named(headrace: Headrace, topic: str) -> None:
    for command in (["consume", topic], ["produce", topic]):
        failed = headrace(*command, "--partition", "7", status=1)
        assert failed.stderr == f"Error: topic '{topic}' has no partition 7\nIt has partitions 0 to 1.\n"
