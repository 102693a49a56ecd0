"""A broker killed during topic changes: metadata and log directories agree at the next start."""

import os
import random
import threading
import uuid
from pathlib import Path

from headrace.storage.dirs.partition_metadata import read_topic_id
from headrace.wire.apis import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.topic_requests import create, produce, values
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

KILLS = int(os.environ.get("HEADRACE_KILLS", "4"))
CHANGES_BETWEEN_KILLS = 15
NAMES = [f"topic-{number}" for number in range(12)]


class TopicChanger:
    """A client that creates, extends and deletes topics of few names at random until its connection ends."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.changes = 0
        self._bootstrap = bootstrap
        self._random = random.Random(seed)
        self.thread = threading.Thread(target=self._change, daemon=True)
        self.thread.start()

    def _change(self) -> None:
        try:
            with WireClient(self._bootstrap) as client:
                while True:
                    self._change_topic(client, self._random.choice(NAMES))
                    self.changes += 1
        except OSError:
            return

    def _change_topic(self, client: WireClient, name: str) -> None:
        if create(client, name, 3) == "none":
            produce(client, name, 0)
        elif self._random.random() < 0.3:
            grown = {"name": name, "count": 3 + self._random.randrange(4), "assignments": None}
            client.ask(ApiKey.CREATE_PARTITIONS, 1, {"topics": [grown], "timeout": 9000, "validate_only": False})
        else:
            client.ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": [name], "timeout": 9000})


def check_agreement(bootstrap: str, data: Path) -> None:
    """Check that directories and partitions correspond by topic id and that every partition works.

    Partial deletions are set aside as strays.
    """
    with WireClient(bootstrap) as client:
        request = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        topics = client.ask(ApiKey.METADATA, 12, request)["topics"]
        expected: dict[str, uuid.UUID] = {}
        for topic in topics:
            assert topic["error_code"] == "none", topic
            for partition in topic["partitions"]:
                assert partition["error_code"] == "none", topic
                expected[f"{topic['name']}-{partition['partition_index']}"] = topic["topic_id"]
        on_disk = {
            path.name: read_topic_id(path)
            for path in data.iterdir()
            if path.is_dir() and not path.name.endswith(("-delete", "-stray"))
        }
        assert on_disk == expected
        for topic in topics:
            for partition in topic["partitions"]:
                name, index = topic["name"], partition["partition_index"]
                assert produce(client, name, index) == "none"
                assert set(values(client, name, index)) == {name.encode()}


def test_metadata_and_log_directories_agree_after_every_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, settings={"log.segment.delete.delay.ms": 50}) as broker:
        for kill in range(KILLS):
            changers = [TopicChanger(broker.bootstrap, 10 * kill + number) for number in range(3)]
            wait_for(lambda: sum(item.changes for item in changers) >= CHANGES_BETWEEN_KILLS, "changes of topics")  # noqa: B023
            broker.sigkill()
            for changer in changers:
                changer.thread.join(20)
            broker.start()
            check_agreement(broker.bootstrap, data)
        assert "Traceback" not in broker.log()
