"""Requests to the controller that moves, is missing, or refuses, with a scripted client instead of kafka-python's."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import (
    InvalidReplicationAssignmentError,
    KafkaConnectionError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    RequestTimedOutError,
)

from headrace.cli.failures import CommandError
from headrace.cli.placement import requests
from headrace.cli.placement.state import UNDER_REPLICATED, Disk
from headrace.cli.reassign import _fail_if_refused as fail_if_refused

CLUSTER: Any = SimpleNamespace(bootstrap="127.0.0.1:1")
TOPIC = {
    "name": "t",
    "error_code": 0,
    "partitions": [
        {"partition_index": 0, "leader_id": 1, "leader_epoch": 5, "replica_nodes": [2, 1], "isr_nodes": [1]},
    ],
}


class Admin:
    """Answers like kafka-python's admin client: every call takes the next answer of its API, the last one again."""

    def __init__(self) -> None:
        self.controllers: list[int] = [1]
        self.answers: dict[str, list[Any]] = {"list_partition_reassignments": [{}]}
        self.calls: list[tuple[Any, ...]] = []

    def describe_cluster(self) -> dict[str, Any]:
        brokers = [{"broker_id": number, "host": "host", "port": number, "rack": None} for number in (2, 1)]
        return {"controller_id": _next(self.controllers), "cluster_id": "c", "brokers": brokers}

    def describe_topics(self) -> list[Any]:
        return [TOPIC, {"name": "deleted", "error_code": 3, "partitions": []}]

    def describe_metadata_quorum(self) -> Any:
        raise KafkaConnectionError("this API is not for ZooKeeper")

    def describe_log_dirs(self, *, topic_partitions: dict[str, list[int]], brokers: Sequence[int]) -> list[Any]:
        if brokers == [2]:
            raise KafkaConnectionError("the broker is gone")
        partition = {"partition_index": 0, "partition_size": 70, "is_future_key": False}
        coming = {"partition_index": 0, "partition_size": 7, "is_future_key": True}
        directories = [
            {"error_code": 0, "total_bytes": 100, "usable_bytes": 20, "topics": _replica(partition)},
            {"error_code": 0, "total_bytes": 100, "usable_bytes": 30, "topics": _replica(coming)},
            {"error_code": 56, "total_bytes": -1, "usable_bytes": -1, "topics": []},
        ]
        assert topic_partitions == {"t": [0]}
        return [{"broker": brokers[0], "log_dirs": directories}]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*values: Any, **_: Any) -> Any:
            self.calls.append((name, *values))
            answer = _next(self.answers[name])
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def _replica(partition: dict[str, Any]) -> list[Any]:
    return [{"name": "t", "partitions": [partition]}]


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    admin = Admin()

    monkeypatch.setattr(requests, "python_admin", lambda *_: nullcontext(admin))
    monkeypatch.setattr(requests, "REQUEST_TIMEOUT_S", 10.0)
    monkeypatch.setattr(requests, "_PAUSE_S", 0.001)
    monkeypatch.setattr(requests, "_with_min_isr", lambda _, state: state)
    return admin


def test_a_cluster_is_read_when_a_controller_lists_the_moves(admin: Admin) -> None:
    admin.controllers = [-1, -1, 2]
    moving = {"replicas": [3, 2, 1], "adding_replicas": [3], "removing_replicas": [2]}
    admin.answers["list_partition_reassignments"] = [{TopicPartition("t", 0): moving}]

    state = requests.read_state(CLUSTER, sizes=False)

    assert list(state.brokers) == [1, 2]
    [partition] = state.partitions.values()
    assert (partition.leader, partition.leader_epoch, partition.target) == (1, 5, (3, 1))
    assert partition.problem == UNDER_REPLICATED


def test_disks_are_summed_over_directories_without_errors_if_the_broker_describes_them(admin: Admin) -> None:
    state = requests.read_state(CLUSTER)
    assert state.brokers[1].disk == Disk(used=77, total=200, free=50)
    assert state.brokers[2].disk is None
    assert state.sizes == {(("t", 0), 1): 70}


def test_without_a_controller_the_cluster_is_still_shown(admin: Admin) -> None:
    admin.controllers = [-1]
    state = requests.read_state(CLUSTER, needs_moves=False)
    assert state.controller is None
    assert not state.is_healthy


def test_without_a_controller_requests_end_with_advice(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUEST_TIMEOUT_S", 0.01)
    admin.controllers = [-1]
    with pytest.raises(CommandError, match="listing reassignments: the cluster has no controller"):
        requests.read_state(CLUSTER, sizes=False)
    with pytest.raises(CommandError, match="reassigning partitions: the cluster has no controller"):
        requests.reassign(CLUSTER, {("t", 0): [1, 2]})


def test_a_request_follows_the_controller(admin: Admin) -> None:
    admin.answers["alter_partition_reassignments"] = [
        NotControllerError(),
        RuntimeError("Failed to find active controller id!"),
        KafkaConnectionError(),
        RequestTimedOutError(),
        {TopicPartition("t", 0): None},
    ]

    assert requests.reassign(CLUSTER, {("t", 0): [1, 2]}) == {}
    assert len(admin.calls) == 5


def test_a_controller_that_does_not_reply_ends_the_request(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_BUSY_S", -1.0)
    admin.answers["alter_partition_reassignments"] = [RequestTimedOutError()]
    with pytest.raises(RequestTimedOutError):
        requests.reassign(CLUSTER, {("t", 0): [1, 2]})


def test_a_controller_that_fails_over_after_a_timeout_is_followed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 10.1, 10.2, 10.3])
    monkeypatch.setattr("headrace.cli.placement.requests.time.monotonic", lambda: next(times, 11.0))
    answer = {TopicPartition("t", 0): None}
    admin.answers["alter_partition_reassignments"] = [RequestTimedOutError(), NotControllerError(), answer]
    assert requests.reassign(CLUSTER, {("t", 0): [1, 2]}) == {}


def test_a_cancellation_that_may_have_been_carried_out_is_not_repeated(admin: Admin) -> None:
    admin.answers["alter_partition_reassignments"] = [RequestTimedOutError(), {TopicPartition("t", 0): None}]
    with pytest.raises(RequestTimedOutError):
        requests.reassign(CLUSTER, {("t", 0): None})


@pytest.mark.parametrize("request_name", ["alter_partition_reassignments", "elect_leaders"])
def test_a_request_is_not_repeated_if_it_was_sent_before_the_connection_was_lost(
    admin: Admin, request_name: str
) -> None:
    admin.answers[request_name] = [KafkaConnectionError("socket disconnected"), {TopicPartition("t", 0): None}]
    doing = "cancelling moves" if request_name == "alter_partition_reassignments" else "electing leaders"
    with pytest.raises(CommandError, match=f"{doing}: the connection to the controller was lost before it replied"):
        send(request_name)


@pytest.mark.parametrize("request_name", ["alter_partition_reassignments", "elect_leaders"])
def test_a_request_that_was_not_sent_goes_to_the_next_controller(admin: Admin, request_name: str) -> None:
    failures = [KafkaConnectionError("unable to connect"), RequestTimedOutError()]
    admin.answers["list_partition_reassignments"] = [*failures, {}]
    admin.answers["alter_partition_reassignments"] = [{TopicPartition("t", 0): None}]
    admin.answers["elect_leaders"] = [SimpleNamespace(error_code=0, replica_election_results=[])]
    assert send(request_name) == {}
    assert [name for name, *_ in admin.calls].count(request_name) == 1


def send(request_name: str) -> dict[Any, Any]:
    """Cancel a move or elect a leader: requests whose second reply would differ."""
    if request_name == "elect_leaders":
        return requests.elect(CLUSTER, requests.PREFERRED, [("t", 0)])
    return requests.reassign(CLUSTER, {("t", 0): None})


def test_refused_moves_are_named(admin: Admin) -> None:
    answer = {TopicPartition("t", 0): InvalidReplicationAssignmentError, TopicPartition("t", 1): None}
    admin.answers["alter_partition_reassignments"] = [answer]

    refused = requests.reassign(CLUSTER, {("t", 0): [9], ("t", 1): [1]})

    assert {place: refusal.name for place, refusal in refused.items()} == {("t", 0): "INVALID_REPLICATION_ASSIGNMENT"}


def test_the_error_about_refused_moves_gives_the_first_reason_and_counts_the_others() -> None:
    refused = {("t", number): requests.Refusal("NAME", f"reason {number}") for number in range(3)}
    with pytest.raises(CommandError) as raised:
        fail_if_refused(refused, "cancel the move of")
    assert raised.value.what == "cannot cancel the move of t:0: reason 0 (NAME); also refused: 2 other partitions"


def test_refused_elections_have_the_brokers_reason(admin: Admin) -> None:
    results = [
        SimpleNamespace(partition_id=0, error_code=0, error_message=None),
        SimpleNamespace(partition_id=1, error_code=PreferredLeaderNotAvailableError.errno, error_message="it is gone"),
    ]
    topic = SimpleNamespace(topic="t", partition_result=results)
    admin.answers["elect_leaders"] = [SimpleNamespace(error_code=0, replica_election_results=[topic])]

    refused = requests.elect(CLUSTER, requests.PREFERRED, [("t", 1), ("t", 0)])

    assert refused == {("t", 1): requests.Refusal("PREFERRED_LEADER_NOT_AVAILABLE", "it is gone")}
    assert admin.calls[-1] == ("elect_leaders", requests.PREFERRED, {"t": [0, 1]})


def test_many_partitions_are_split_into_requests(admin: Admin) -> None:
    admin.answers["alter_partition_reassignments"] = [{}]
    requests.reassign(CLUSTER, {("t", number): [1] for number in range(2500)})
    assert [len(wanted) for _, wanted in admin.calls] == [1000, 1000, 500]
