"""Payloads have the format of Kafka 3.9 in ZooKeeper mode."""

import json
import uuid

from headrace.cluster import znodes
from headrace.cluster.image import BrokerImage, ConfigResource, Endpoint, PartitionImage

TOPIC_ID = uuid.UUID("5bb70575-9701-46a5-9fe3-de625c6fd933")


def test_a_broker_node_has_endpoints() -> None:
    endpoints = (Endpoint("SSL", "h", 9093, "SSL"), Endpoint("PLAINTEXT", "::1", 9092, "PLAINTEXT"))
    data = znodes.encode_broker(BrokerImage(3, endpoints, "r1"), 17)
    assert json.loads(data) == {
        "features": {},
        "listener_security_protocol_map": {"SSL": "SSL", "PLAINTEXT": "PLAINTEXT"},
        "endpoints": ["SSL://h:9093", "PLAINTEXT://[::1]:9092"],
        "jmx_port": -1,
        "port": 9092,
        "host": "::1",
        "version": 5,
        "timestamp": "17",
        "rack": "r1",
    }
    assert znodes.decode_broker(3, data, epoch=40) == BrokerImage(3, endpoints, "r1", 40)


def test_a_broker_without_a_plaintext_listener_has_no_host_and_port() -> None:
    value = json.loads(znodes.encode_broker(BrokerImage(3, (Endpoint("SSL", "h", 9093, "SSL"),)), 17))
    assert (value["host"], value["port"], "rack" in value) == (None, -1, False)


def test_a_topic_node_has_replicas_and_an_id() -> None:
    data = znodes.encode_topic(TOPIC_ID, {0: (1, 2), 1: (2, 1)})
    expected = (
        b'{"removing_replicas":{},"partitions":{"0":[1,2],"1":[2,1]},'
        b'"topic_id":"W7cFdZcBRqWf495iXG_ZMw","adding_replicas":{},"version":3}'
    )
    assert data == expected
    assert znodes.decode_topic(data) == (TOPIC_ID, {0: (1, 2), 1: (2, 1)})


def test_a_topic_node_of_version_1_has_no_id() -> None:
    assert znodes.decode_topic(b'{"version":1,"partitions":{"1":[1],"0":[2]}}') == (None, {0: (2,), 1: (1,)})


def test_a_state_node_has_leader_and_in_sync_replicas() -> None:
    data = znodes.encode_state(PartitionImage(1, 7, (1, 2), (1,)), 3)
    assert data == b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":7,"isr":[1]}'
    assert znodes.decode_state(data, 4, (1, 2)) == PartitionImage(1, 7, (1, 2), (1,), 4)


def test_the_controller_node_has_the_broker_id() -> None:
    data = znodes.encode_controller(1, 17)
    assert json.loads(data) == {"version": 2, "brokerid": 1, "timestamp": "17", "kraftControllerEpoch": -1}


def test_settings_are_strings() -> None:
    data = znodes.encode_config({"retention.ms": "5"})
    assert data == b'{"version":1,"config":{"retention.ms":"5"}}'
    assert znodes.decode_config(data) == {"retention.ms": "5"}
    assert znodes.decode_config(b"") == {}


def test_paths_of_settings() -> None:
    assert znodes.config_path(ConfigResource("topics", "a.b_c-d")) == "/config/topics/a.b_c-d"
    assert znodes.config_path(ConfigResource("brokers", "")) == "/config/brokers/<default>"
    assert znodes.config_path(ConfigResource("groups", "a/b *")) == "/config/groups/a%2Fb%20%2A"
    assert znodes.desanitize("a%2Fb%20%2A") == "a/b *"
    assert znodes.desanitize("<default>") == ""


def test_a_block_of_producer_ids_has_first_and_last_id() -> None:
    data = znodes.encode_producer_ids(1, 1000, 1999)
    assert data == b'{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}'
    assert znodes.decode_producer_ids(data) == (1000, 1999)


def test_the_cluster_id_node_has_a_version() -> None:
    assert znodes.encode_cluster_id("x") == b'{"version":"1","id":"x"}'
    assert znodes.decode_cluster_id(b'{"version":"1","id":"x"}') == "x"
