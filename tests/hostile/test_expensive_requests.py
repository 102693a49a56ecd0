"""The most expensive requests: other clients hardly wait, memory stays bounded, and the broker can be stopped."""

import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from headrace.wire.apis import ApiKey
from tests.hostile import expensive
from tests.hostile.attack import TOPIC, Innocent, attack, send
from tests.hostile.expensive import Message, frame
from tests.hostile.raw import Batch, RawConnection
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

EVERY_KIND: Final = {
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.JOIN_GROUP,
    ApiKey.DELETE_RECORDS,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
}
"""Requests about records, topics, offsets, groups, transactions and settings; `make slow` sends all others."""


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"offsets.topic.num.partitions": 4}
    with BrokerProcess(tmp_path_factory.mktemp("expensive") / "data", settings=settings) as broker:
        with WireClient(broker.bootstrap) as client:
            client.ask(ApiKey.FIND_COORDINATOR, 6, {"coordinator_keys": ["expensive"]})
        with RawConnection(broker.host, broker.port) as connection:
            assert connection.create_topic(TOPIC) == 0
        yield broker
        assert broker.sigterm() == 0
        assert "Traceback" not in broker.log()


def new_topics(names: list[str], partitions: int, *, validate_only: bool) -> bytes:
    topic = {"num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [{**topic, "name": name} for name in names]
    return frame(ApiKey.CREATE_TOPICS, {"topics": topics, "timeout": 60_000, "validate_only": validate_only})


def deletion(names: list[str]) -> bytes:
    topics = [{"name": name, "topic_id": None} for name in names]
    return frame(ApiKey.DELETE_TOPICS, {"topics": topics, "timeout": 60_000})


def test_every_supported_api_has_a_most_expensive_request(own_broker: BrokerProcess) -> None:
    with WireClient(own_broker.bootstrap) as client:
        supported = {item["api_key"] for item in client.ask(ApiKey.API_VERSIONS, 0, {})["api_keys"]}
    assert supported == {int(api) for api in expensive.REQUESTS}


@pytest.mark.parametrize(
    "api",
    [
        pytest.param(api, marks=[] if api in EVERY_KIND else [pytest.mark.slow], id=api.name)
        for api in expensive.REQUESTS
    ],
)
def test_the_most_expensive_request_keeps_nobody_waiting(own_broker: BrokerProcess, api: ApiKey) -> None:
    assert attack(own_broker, frame(api, expensive.REQUESTS[api](TOPIC)))


@pytest.mark.parametrize(("offsets", "error"), [(15_000, 0), (15_001, 28)])
def test_the_largest_commit_keeps_nobody_waiting(own_broker: BrokerProcess, offsets: int, error: int) -> None:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    message = {"group_id": "commits", "member_id": "", "topics": [{"name": TOPIC, "partitions": [partition] * offsets}]}
    answer = attack(own_broker, frame(ApiKey.OFFSET_COMMIT, message, 9))
    assert answer is not None
    assert answer.count(struct.pack(">ihx", 0, error)) >= offsets


@pytest.mark.slow
def test_offsets_of_thousands_of_open_transactions_keep_nobody_waiting(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.bootstrap) as client:
        with RawConnection(broker.host, broker.port) as connection:
            assert connection.create_topic(TOPIC) == 0
        client.ask(ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": ["t"]})
        client.ask(ApiKey.FIND_COORDINATOR, 6, {"coordinator_keys": ["commits"]})
        names = [f"t{number}" for number in range(4000)]
        offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        group = {"group_id": "commits", "member_id": ""}
        for name, producer_id in begin_transactions(client, names, timeout_ms=600_000).items():
            message = {
                **group,
                "transactional_id": name,
                "producer_id": producer_id,
                "producer_epoch": 0,
                "generation_id": -1,
                "topics": [{"name": TOPIC, "partitions": [offset]}],
            }
            answer = client.ask(ApiKey.TXN_OFFSET_COMMIT, 5, message)
            assert answer["topics"][0]["partitions"][0]["error_code"] == "none"
        topics = [{"name": TOPIC, "partitions": [offset] * 15_000}]
        commit = {**group, "generation_id_or_member_epoch": -1, "topics": topics}
        assert attack(broker, frame(ApiKey.OFFSET_COMMIT, commit, 9))
        assert broker.sigterm() == 0


MANY_PARTITIONS: Final = 3000


@pytest.fixture(scope="module")
def wide(own_broker: BrokerProcess) -> str:
    soft, hard = resource.prlimit(own_broker.pid, resource.RLIMIT_NOFILE)
    assert soft == hard or resource.prlimit(own_broker.pid, resource.RLIMIT_NOFILE, (hard, hard))
    assert send(own_broker, new_topics(["wide"], MANY_PARTITIONS, validate_only=False))
    return "wide"


def test_batches_for_many_partitions_keep_nobody_waiting(own_broker: BrokerProcess, wide: str) -> None:
    records = Batch(values=(b"x",)).encode()
    for data in (
        [{"index": index, "records": records} for index in range(MANY_PARTITIONS)],
        [{"index": 0, "records": records}] * expensive.MANY_BATCHES,
        [{"index": index, "records": records[:-1] + b"!"} for index in range(MANY_PARTITIONS)],
    ):
        topic = {"name": wide, "partition_data": data}
        message = {"acks": 1, "timeout": 1000, "topic_data": [topic]}
        answer = attack(own_broker, frame(ApiKey.PRODUCE, message, 9))
        assert answer is not None
        assert len(answer) > 20 * len(data)


@pytest.mark.slow
def test_offset_lookups_by_time_in_many_partitions_keep_nobody_waiting(own_broker: BrokerProcess, wide: str) -> None:
    for partitions in (range(expensive.MANY), [0] * expensive.MANY):
        entries = [{"partition_index": index, "timestamp": 1} for index in partitions]
        topics = [{"name": wide, "partitions": entries}]
        message = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}
        assert attack(own_broker, frame(ApiKey.LIST_OFFSETS, message))


@pytest.mark.parametrize("wait_ms", [pytest.param(0, marks=pytest.mark.slow), 500])
def test_a_fetch_of_many_partitions_keeps_nobody_waiting(own_broker: BrokerProcess, wide: str, wait_ms: int) -> None:
    message = expensive.REQUESTS[ApiKey.FETCH](TOPIC)
    entries = message["topics"][0]["partitions"]
    partitions = entries if not wait_ms else entries[:MANY_PARTITIONS]
    message |= {"topics": [{"topic": wide, "partitions": partitions}], "max_wait": wait_ms, "min_bytes": 1 << 20}
    for epoch in (-1, 0):
        answer = attack(own_broker, frame(ApiKey.FETCH, {**message, "session_epoch": epoch}, 12))
        assert answer is not None
        assert len(answer) > 20 * len(partitions)


@pytest.mark.slow
def test_repeated_fetches_of_all_offsets_of_large_groups_keep_nobody_waiting(
    own_broker: BrokerProcess, wide: str
) -> None:
    offset = {"committed_offset": 1, "committed_metadata": ""}
    names = [f"large-{number}" for number in range(10)]
    for name in names:
        partitions = [{**offset, "partition_index": index} for index in range(MANY_PARTITIONS)]
        commit = {"group_id": name, "member_id": "", "topics": [{"name": wide, "partitions": partitions}]}
        assert send(own_broker, frame(ApiKey.OFFSET_COMMIT, commit, 9))
    group = {"topics": None}
    groups = [{**group, "group_id": name} for name in names * 30]
    answer = attack(own_broker, frame(ApiKey.OFFSET_FETCH, {"groups": groups, "require_stable": True}, 9))
    assert answer is not None
    assert len(answer) > 10 * MANY_PARTITIONS * len(groups)


def test_partitions_of_one_transaction_keep_nobody_waiting(own_broker: BrokerProcess) -> None:
    partitions = range(expensive.MANY)
    for version, message in (
        (5, {"transactions": [expensive.transaction("t", TOPIC, partitions)]}),
        (
            3,
            {
                "v3_and_below_transactional_id": "t",
                "v3_and_below_producer_id": 1,
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": [{"name": TOPIC, "partitions": partitions}],
            },
        ),
    ):
        answer = attack(own_broker, frame(ApiKey.ADD_PARTITIONS_TO_TXN, message, version))
        assert answer is not None
        assert len(answer) > 6 * expensive.MANY


def test_a_slow_pattern_for_long_transactional_ids_keeps_nobody_waiting(own_broker: BrokerProcess) -> None:
    with WireClient(own_broker.bootstrap) as client:
        client.ask(ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": ["t"]})
        begin_transactions(client, [f"{number}{'a' * 20_000}" for number in range(3)], timeout_ms=600_000)
    filters: Message = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    # RE2 needs a second for each id
    answer = attack(own_broker, frame(ApiKey.LIST_TRANSACTIONS, {**filters, "transactional_id_pattern": ".*a.{900}b"}))
    assert answer is not None
    assert b"a" not in answer
    pattern = "1a+|2a{3}a*"
    answer = send(own_broker, frame(ApiKey.LIST_TRANSACTIONS, {**filters, "transactional_id_pattern": pattern}))
    assert answer is not None
    assert answer.count(b"a" * 20_000) == 2


@pytest.mark.slow
def test_thousands_of_expired_transactions_keep_nobody_waiting(tmp_path: Path) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker, WireClient(broker.bootstrap) as client:
        with RawConnection(broker.host, broker.port) as connection:
            assert connection.create_topic(TOPIC) == 0
        client.ask(ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": ["t"]})
        begin_transactions(client, [f"t{number}" for number in range(8000)], timeout_ms=1)
        with Innocent(broker) as innocent:
            wait_for(lambda: transactions(client, "CompleteAbort") == 8000, "their end", timeout_s=60)
            innocent.check()
        assert broker.sigterm() == 0


def begin_transactions(client: WireClient, names: list[str], *, timeout_ms: int) -> dict[str, int]:
    """Begin transactions of version 2 in partition 0 and return the producer ids by transactional id."""
    begun = []
    wait_for(lambda: transactions(client) >= 0, "the ids are loaded")
    for name in names:
        message = {"transactional_id": name, "transaction_timeout": timeout_ms}
        answer = client.ask(ApiKey.INIT_PRODUCER_ID, 5, message)
        begun.append({**expensive.transaction(name, TOPIC, [0]), "producer_id": answer["producer_id"]})
    answer = client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, {"transactions": begun})
    assert len(answer["results_by_transaction"]) == len(names)
    return {item["transactional_id"]: item["producer_id"] for item in begun}


def transactions(client: WireClient, *states: str) -> int:
    """Return the number of transactional ids in `states`, or -1 while they are loading."""
    filters = {"state_filters": states}
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, 1, filters)
    return len(answer["transaction_states"]) if answer["error_code"] == "none" else -1


def test_two_million_partitions_are_refused_as_in_kafka(own_broker: BrokerProcess) -> None:
    answer = attack(own_broker, new_topics([f"a{number}" for number in range(200)], 10_000, validate_only=True))
    assert answer is not None
    assert (
        answer.count(b"Excessively large number of partitions per request: 2000000, but at most 10000 are allowed.")
        == 200
    )


TOO_MANY: Final[dict[ApiKey, Message]] = {
    ApiKey.DESCRIBE_GROUPS: {"groups": ["a"] * 200_000, "include_authorized_operations": False},
    ApiKey.METADATA: {
        "topics": [{"name": "a", "topic_id": None}] * 200_000,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    },
}


@pytest.mark.parametrize("api", TOO_MANY, ids=lambda api: api.name)
def test_too_many_entries_close_the_connection(own_broker: BrokerProcess, api: ApiKey) -> None:
    before = len(own_broker.log())
    assert attack(own_broker, frame(api, TOO_MANY[api])) is None
    assert f"{api.name} v" in own_broker.log()[before:]
    assert "more than 100000 entries" in own_broker.log()[before:]


def test_group_metadata_too_large_to_store_is_refused(own_broker: BrokerProcess) -> None:
    protocols = [{"name": "range", "metadata": bytes(15_000_000)}]
    message = {**expensive.REQUESTS[ApiKey.JOIN_GROUP](TOPIC), "protocols": protocols}
    assert attack(own_broker, frame(ApiKey.JOIN_GROUP, message)) is not None
    protocols[0]["metadata"] = bytes(90_000_000)
    assert attack(own_broker, frame(ApiKey.JOIN_GROUP, message)) is None


def test_an_excessive_answer_closes_the_connection(own_broker: BrokerProcess) -> None:
    resource = {"resource_type": 4, "resource_name": "0", "configuration_keys": None}
    message = {"resources": [resource] * 6000, "include_synonyms": True, "include_documentation": True}
    with WireClient(own_broker.bootstrap) as client:
        client.ask(ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False})
    assert attack(own_broker, frame(ApiKey.DESCRIBE_CONFIGS, message)) is None


def test_clients_are_served_while_a_thousand_topics_are_deleted(tmp_path: Path) -> None:
    names = [f"many.{number}" for number in range(1000)]
    with BrokerProcess(tmp_path / "data") as broker:
        assert attack(broker, new_topics(names, 1, validate_only=False)) is not None
        answer = attack(broker, deletion(names))
        assert answer is not None
        with WireClient(broker.bootstrap) as client:
            assert _topics(client) == {"innocent"}
            topic = {"name": names[0], "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
            assert client.ask(ApiKey.CREATE_TOPICS, 7, message)["topics"][0]["error_code"] == "none"
        assert broker.sigterm() == 0


def test_a_crash_in_the_middle_of_a_deletion_leaves_whole_topics(tmp_path: Path) -> None:
    names = [f"many-{number}" for number in range(200)]
    with BrokerProcess(tmp_path / "data") as broker:
        assert send(broker, new_topics([*names, "kept"], 1, validate_only=False)) is not None
        with socket.create_connection((broker.host, broker.port)) as connection:
            connection.sendall(deletion(names))
            wait_for(lambda: any(broker.data.glob("many-*-delete")), "the first file is renamed", timeout_s=30)
            broker.sigkill()
        broker.start()
        with WireClient(broker.bootstrap) as client:
            assert _topics(client) == {"kept"}
        assert send(broker, new_topics(names, 1, validate_only=False)) is not None
        with WireClient(broker.bootstrap) as client:
            assert _topics(client) == {"kept", *names}
        with RawConnection(broker.host, broker.port) as raw:
            assert raw.produce("many-199", Batch().encode()) == (0, 0)


def _topics(client: WireClient) -> set[str]:
    message = {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return {item["name"] for item in client.ask(ApiKey.METADATA, 12, message)["topics"]}


@pytest.mark.parametrize(
    "api",
    [
        pytest.param(api, marks=[] if api is ApiKey.CREATE_TOPICS else [pytest.mark.slow], id=api.name)
        for api in (
            ApiKey.DESCRIBE_CONFIGS,
            ApiKey.CREATE_TOPICS,
            ApiKey.DESCRIBE_GROUPS,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.WRITE_TXN_MARKERS,
        )
    ],
)
def test_a_busy_broker_can_be_stopped(tmp_path: Path, api: ApiKey) -> None:
    request = frame(api, expensive.REQUESTS[api](TOPIC))
    with BrokerProcess(tmp_path / "data") as broker:
        with RawConnection(broker.host, broker.port) as connection:
            assert connection.create_topic(TOPIC) == 0
            connection.send(request)
            (size,) = struct.unpack_from(">i", request)
            assert size + 4 == len(request)
            send(broker, frame(ApiKey.API_VERSIONS, {"client_software_name": "a", "client_software_version": "1"}))
            assert broker.sigterm() == 0
        assert "Traceback" not in broker.log()
