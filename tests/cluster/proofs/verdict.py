"""The checks at the end of a proof with Headrace brokers alone: a full read, and the replicas compared."""

import json
from typing import Any

from headrace.wire.apis import ApiKey
from tests.cluster.proofs.kills import defects_in
from tests.cluster.proofs.load import Load
from tests.cluster.proofs.reading import check, read
from tests.cluster.trio import Trio
from tests.support.replica_logs import Compared, compare
from tests.support.topics import ends
from tests.support.wire_client import WireClient


def elect_preferred_leaders(trio: Trio) -> None:
    with WireClient(trio.brokers[trio.controller()].bootstrap) as client:
        fields = {"election_type": 0, "topic_partitions": None, "timeout": 60_000}
        answer = client.ask(ApiKey.ELECT_LEADERS, 2, fields)
    assert answer["error_code"] == "none", answer


def verify(trio: Trio, topic: str, partitions: int, load: Load) -> dict[str, Any]:
    """Return figures. Raises AssertionError if anything is lost, duplicated, out of order or unequal."""
    load.check()
    found = read(trio.bootstrap, topic, partitions)
    findings = check(found, load.written)
    assert not findings.all, f"{len(findings.all)} wrong: " + "\n".join(findings.all[:20])
    compared = Compared(0, 0, 0)
    replicas = json.loads(trio.zookeeper.get(f"/brokers/topics/{topic}")[0])["partitions"]
    for partition, end in enumerate(ends(trio.bootstrap, topic, partitions)):
        name = f"{topic}-{partition}"
        directories = {f"broker {broker}": trio.brokers[broker].data / name for broker in replicas[str(partition)]}
        compared += compare(name, directories, first=0, end=end)
    defects = defects_in(trio.brokers)
    assert not defects, "in the logs: " + "\n".join(defects[:20])
    return {
        "records acknowledged": load.acknowledged,
        "records read": found.size,
        "lost": 0,
        "duplicated": 0,
        "out of order": 0,
        "batches equal on 3 replicas": compared.batches,
    }
