"""Offsets about to expire are reported in the metrics and in the log."""

import re
import urllib.request

import pytest

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.support.topics import create_topic
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

SETTINGS = {"headrace.http.listener": "0", "offsets.retention.check.interval.ms": "100"}
EXPIRY = re.compile(r'headrace_group_offsets_expire_seconds\{group="g"\} (\S+)')


def test_offsets_about_to_expire_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(SETTINGS) as broker, WireClient(broker.bootstrap) as client:
        create_topic(broker.bootstrap, "t")
        client.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "g"})
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        commit = {
            "group_id": "g",
            "member_id": "",
            "retention_time": 60_000,
            "topics": [{"name": "t", "partitions": [partition]}],
        }

        def is_committed() -> bool:
            (topic,) = client.ask(ApiKey.OFFSET_COMMIT, 2, commit)["topics"]
            return bool(topic["partitions"][0]["error_code"] == "none")

        wait_for(is_committed, "the commit")

        def announced() -> re.Match[str] | None:
            with urllib.request.urlopen(f"{broker.http}/metrics") as answer:
                return EXPIRY.search(answer.read().decode())

        found = wait_for(announced, "the group among the metrics")
        assert found is not None
        assert 30 < float(found[1]) <= 60
        assert "Group g will lose committed offsets in 0 minutes" in caplog.text
