"""Paths and contents of the nodes in Kafka's metadata tree, byte for byte as Kafka 3.9 writes them to ZooKeeper."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.cluster.image import Assignment, BrokerImage, ConfigResource, Endpoint, LeaderState, PartitionImage
from headrace.types import TopicPartition
from headrace.wire.ids import id_to_text, text_to_id

CLUSTER_ID: Final = "/cluster/id"
BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
FEATURES: Final = "/feature"
CONFIG: Final = "/config"
CONFIG_KINDS: Final = ("topics", "brokers", "clients", "users", "ips", "groups", "client-metrics", "changes")
PERSISTENT: Final = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    TOPICS,
    "/brokers/seqid",
    "/admin",
    "/admin/delete_topics",
    "/isr_change_notification",
    "/log_dir_event_notification",
    PRODUCER_ID_BLOCK,
    CONFIG,
    *(f"{CONFIG}/{kind}" for kind in CONFIG_KINDS),
)
"""The persistent nodes of a cluster in the embedded store, parents before children."""
IN_ZOOKEEPER: Final = (
    "/consumers",
    *(path for path in PERSISTENT if path not in (f"{CONFIG}/groups", f"{CONFIG}/client-metrics")),
)
"""The nodes of a new cluster in ZooKeeper, as Kafka 3.9 creates them."""
DELETIONS: Final = "/admin/delete_topics"
REASSIGNMENTS: Final = "/admin/reassign_partitions"
ELECTIONS: Final = "/admin/preferred_replica_election"
"""REASSIGNMENTS and ELECTIONS contain deprecated requests, which Kafka 3.9 still executes."""
ISR_CHANGES: Final = "/isr_change_notification"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
CLUSTER_DEFAULT: Final = "<default>"
CONFIG_CHANGE: Final = f"{CONFIG}/changes/config_change_"
LOG_DIR_EVENT: Final = "/log_dir_event_notification/log_dir_event_"
"""Path prefixes of the sequential nodes that announce changed settings and failed log directories."""


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def deletion_path(topic: str) -> str:
    return f"{DELETIONS}/{topic}"


def config_path(resource: ConfigResource) -> str:
    return f"{CONFIG}/{resource.kind}/{sanitize(resource.name) if resource.name else CLUSTER_DEFAULT}"


def sanitize(name: str) -> str:
    """Encode a name for a path as Kafka does: URL-encoded, including `*` and blanks."""
    from urllib.parse import quote

    return quote(name, safe="-._").replace("~", "%7E")


def desanitize(name: str) -> str:
    """Return the name that sanitize() encoded; "" for the cluster default."""
    from urllib.parse import unquote

    return "" if name == CLUSTER_DEFAULT else unquote(name)


_FROM_JSON: Final = json.JSONDecoder().decode
_TO_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _encode(value: Mapping[str, object]) -> bytes:
    return _TO_JSON(value).encode()


def _decode(data: bytes) -> Any:
    return _FROM_JSON(data.decode()) if data else {}


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return str(_decode(data)["id"])


def encode_broker(broker: BrokerImage, timestamp_ms: int) -> bytes:
    plain = next((endpoint for endpoint in broker.endpoints if endpoint.security_protocol == "PLAINTEXT"), None)
    value: dict[str, object] = {
        "features": {},
        "listener_security_protocol_map": {
            endpoint.listener: endpoint.security_protocol for endpoint in broker.endpoints
        },
        "endpoints": [
            f"{endpoint.listener}://{_bracket(endpoint.host)}:{endpoint.port}" for endpoint in broker.endpoints
        ],
        "jmx_port": -1,
        "port": plain.port if plain else -1,
        "host": plain.host if plain else None,
        "version": 5,
        "timestamp": str(timestamp_ms),
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    return _encode(value)


def decode_broker(broker_id: int, data: bytes, epoch: int) -> BrokerImage:
    value = _decode(data)
    protocols = value.get("listener_security_protocol_map", {})
    endpoints = []
    for text in value["endpoints"]:
        listener, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        endpoints.append(Endpoint(listener, host.strip("[]"), int(port), protocols.get(listener, listener)))
    return BrokerImage(broker_id, tuple(endpoints), value.get("rack"), epoch)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def encode_topic(topic_id: uuid.UUID, replicas: Mapping[int, Sequence[int]]) -> bytes:
    return _encode(
        {
            "removing_replicas": {},
            "partitions": {str(partition): list(brokers) for partition, brokers in replicas.items()},
            "topic_id": id_to_text(topic_id),
            "adding_replicas": {},
            "version": 3,
        }
    )


def decode_topic(data: bytes) -> tuple[uuid.UUID | None, dict[int, tuple[int, ...]]]:
    value = _decode(data)
    replicas = {int(partition): tuple(brokers) for partition, brokers in value["partitions"].items()}
    topic_id = value.get("topic_id")
    return (text_to_id(topic_id) if topic_id else None), dict(sorted(replicas.items()))


def encode_assignments(topic_id: uuid.UUID, assignments: Mapping[int, Assignment]) -> bytes:
    """Encode a topic with its reassignments (KIP-455)."""
    return _encode(
        {
            "removing_replicas": {
                str(index): list(item.removing) for index, item in assignments.items() if item.removing
            },
            "partitions": {str(index): list(item.replicas) for index, item in assignments.items()},
            "topic_id": id_to_text(topic_id),
            "adding_replicas": {str(index): list(item.adding) for index, item in assignments.items() if item.adding},
            "version": 3,
        }
    )


def decode_assignments(data: bytes) -> tuple[uuid.UUID | None, dict[int, Assignment]]:
    value = _decode(data)
    adding, removing = value.get("adding_replicas", {}), value.get("removing_replicas", {})
    assignments = {
        int(index): Assignment(
            tuple(map(int, replicas)), tuple(map(int, adding.get(index, ()))), tuple(map(int, removing.get(index, ())))
        )
        for index, replicas in value["partitions"].items()
    }
    topic_id = value.get("topic_id")
    return (text_to_id(topic_id) if topic_id else None), dict(sorted(assignments.items()))


def encode_leader_state(state: LeaderState) -> bytes:
    recovery = f',"leader_recovery_state":{state.recovery}' if state.recovery else ""
    return (
        f'{{"controller_epoch":{state.controller_epoch},"leader":{state.leader},"version":1,'
        f'"leader_epoch":{state.leader_epoch},"isr":[{",".join(map(str, state.isr))}]{recovery}}}'
    ).encode()


def decode_leader_state(data: bytes, version: int, zxid: int) -> LeaderState:
    value = _decode(data)
    return LeaderState(
        value["leader"],
        value["leader_epoch"],
        tuple(value["isr"]),
        version,
        value["controller_epoch"],
        value.get("leader_recovery_state", 0),
        zxid,
    )


def decode_reassignments(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Decode the deprecated request for reassignments."""
    return {
        TopicPartition(item["topic"], item["partition"]): tuple(item["replicas"])
        for item in _decode(data).get("partitions", ())
    }


def encode_reassignments(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    partitions = [
        {"topic": topic, "partition": index, "replicas": list(replicas)} for (topic, index), replicas in targets.items()
    ]
    return _encode({"version": 1, "partitions": partitions})


def decode_partitions(data: bytes) -> list[TopicPartition]:
    """Decode the partitions in a deprecated election request or in an ISR change notification."""
    return [TopicPartition(item["topic"], item["partition"]) for item in _decode(data).get("partitions", ())]


def decode_log_dir_failure(data: bytes) -> int:
    """Return the broker with a failed log directory."""
    return int(_decode(data)["broker"])


def encode_state(partition: PartitionImage, controller_epoch: int) -> bytes:
    # Encoded by hand because a start writes one for every partition.
    return (
        f'{{"controller_epoch":{controller_epoch},"leader":{partition.leader},"version":1,'
        f'"leader_epoch":{partition.leader_epoch},"isr":[{",".join(map(str, partition.isr))}]}}'
    ).encode()


def decode_state(data: bytes, version: int, replicas: tuple[int, ...], zxid: int = -1) -> PartitionImage:
    value = _decode(data)
    return PartitionImage(value["leader"], value["leader_epoch"], replicas, tuple(value["isr"]), version, zxid)


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _encode({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def encode_config(values: Mapping[str, str]) -> bytes:
    return _encode({"version": 1, "config": dict(values)})


def decode_config(data: bytes) -> dict[str, str]:
    return {str(key): str(value) for key, value in _decode(data).get("config", {}).items()}


def encode_config_change(entity_path: str) -> bytes:
    """Encode a notification of changed settings, which are in `entity_path` below /config."""
    return _encode({"version": 2, "entity_path": entity_path})


def encode_log_dir_failure(broker_id: int) -> bytes:
    """Encode a notification that a log directory of a broker has failed (KIP-112)."""
    return _encode({"version": 1, "broker": broker_id, "event": 1})


def encode_features(levels: Mapping[str, int]) -> bytes:
    """Encode finalized feature levels (KIP-584)."""
    return _encode({"version": 2, "status": 1, "features": levels})


def decode_features(data: bytes) -> dict[str, int]:
    return dict(_decode(data)["features"])


def encode_producer_ids(broker_id: int, first: int, last: int) -> bytes:
    return _encode({"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)})


def decode_producer_ids(data: bytes) -> tuple[int, int]:
    value = _decode(data)
    return int(value["block_start"]), int(value["block_end"])
