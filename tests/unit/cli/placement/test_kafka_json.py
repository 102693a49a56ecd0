"""Files in the format of kafka-reassign-partitions."""

import json

from headrace.cli.placement.kafka_json import parsed, written
from tests.support.refusals import wrong_reasons

KAFKAS = (
    '{"version":1,"partitions":[{"topic":"orders","partition":1,"replicas":[3,1],"log_dirs":["any","any"]},'
    '{"topic":"orders","partition":0,"replicas":[2]}]}'
)
"""As Kafka's tool prints it; `log_dirs` is optional."""
ENTRY = '{"topic": "t", "partition": 0, "replicas": [1]}'
ENTRIES = f'{{"partitions": [{ENTRY}]}}'


def test_kafkas_file_is_read() -> None:
    assert parsed(KAFKAS, "plan.json") == {("orders", 1): (3, 1), ("orders", 0): (2,)}


def test_a_written_file_has_kafkas_fields_and_is_read_back() -> None:
    replicas = {("orders", 1): (3, 1), ("a.b_c", 0): (2,)}
    assert parsed(written(replicas), "plan.json") == replicas
    assert json.loads(written({("orders", 1): (3, 1)})) == {
        "version": 1,
        "partitions": [{"topic": "orders", "partition": 1, "replicas": [3, 1], "log_dirs": ["any", "any"]}],
    }
    assert json.loads(written({})) == {"version": 1, "partitions": []}


def test_an_invalid_file_is_refused() -> None:
    problems = {
        "no": "plan.json is not JSON",
        "[" * 100_000: "plan.json is not JSON",
        "[]": "plan.json has no list of partitions",
        '{"version": 2, "partitions": []}': "version 2",
        '{"version": 1, "partitions": []}': "contains no partitions",
        '{"partitions": [7]}': "entry 1 is not a JSON object",
        '{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}': "needs a topic name",
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}': "non-empty list of broker ids",
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}': "names a broker twice",
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/a"]}]}': "does not support",
        f'{{"partitions": [{ENTRY}, {ENTRY}]}}': "t:0 twice",
        ENTRIES.replace("0", str(2**31)): "entry 1 needs a topic name and a partition number from 0 to 2147483647",
        ENTRIES.replace("0", "9" * 5000): "plan.json is not JSON",
        ENTRIES.replace("[1]", f"[{2**31}]"): "non-empty list of broker ids",
        ENTRIES.replace('"t"', r'"\ud800"'): "entry 1: '\ud800' cannot be the name of a topic",
        ENTRIES.replace('"t"', r'"t\u0000x"'): "entry 1: 't\0x' cannot be the name of a topic",
        ENTRIES.replace('"t"', '".."'): "entry 1: '..' cannot be the name of a topic",
        ENTRIES.replace('"t"', f'"{"x" * 300}"'): f"entry 1: '{'x' * 40}...' cannot be the name of a topic",
    }
    assert wrong_reasons(problems, lambda text: parsed(text, "plan.json")) == {}
