import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from headrace.testing import Broker

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def test_every_metric_has_a_help_text() -> None:
    explained = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("monitoring.md", "watching-groups.md"))
    with Broker({"headrace.http.listener": "0"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"v")
        assert producer.flush(10) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        assert consumer.poll(10) is not None
        consumer.commit(asynchronous=False)
        with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        consumer.close()
    names = {family.name for family in families}
    assert "kafka_log_logmanager_offlinelogdirectorycount" in names
    assert [name for name in sorted(names) if f"`{name}" not in explained] == []
