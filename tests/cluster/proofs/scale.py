"""Controller failover with thousands of partitions on three brokers, and many topics created and deleted in a row.

The controller is killed. Its session expires, `/controller` disappears, and another broker becomes the controller and
elects leaders for the partitions of the dead broker. The failover ends when every partition has a leader that answers.
"""

import json
import os
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.wire.apis import ApiKey
from tests.adoption.kafka import ZooKeeper
from tests.cluster.proofs.rig import Say
from tests.cluster.trio import IDS, Trio, headrace, kafka
from tests.support.ports import free_port
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

_LATEST: Final = -1
_LIST_OFFSETS_VERSION: Final = 5
_PROBE_S: Final = 0.02
_WITHIN_S: Final = 300.0
_PROBED_AT_ONCE: Final = 32

Partition = tuple[str, int]


class Failover(NamedTuple):
    """From the loss of `/controller` until the last leader answers."""

    seconds: float
    processor_s: float
    """Of both brokers together, which depends less on what else the machine does."""


class Plan(NamedTuple):
    partitions: int = 2000
    topics: int = 20
    """The number of topics that have these partitions."""
    failovers: int = 3
    churned: int = 200
    """The number of topics that are created and deleted."""
    limit_s: float | None = None
    """The longest failover of Headrace that is accepted."""
    with_kafka: bool = True


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if something is left over, or a failover takes too long."""
    figures: dict[str, Any] = {"partitions": plan.partitions}
    for kind in (headrace, *([kafka] if plan.with_kafka else [])):
        name = kind.__name__.capitalize()
        directory = base / name.lower()
        with _cluster(directory, is_headrace=kind is headrace) as trio:
            seconds = _create(trio, plan)
            say(f"{name}: {plan.partitions} partitions created and in sync after {seconds:.1f} s")
            failovers = [
                _fail_over(trio, plan, say, f"{name}, {number + 1}/{plan.failovers}")
                for number in range(plan.failovers)
            ]
            figures[f"{name}: seconds of each failover"] = " ".join(f"{taken:.2f}" for taken, _ in failovers)
            figures[f"{name}: processor seconds of both brokers"] = " ".join(f"{used:.2f}" for _, used in failovers)
            churn = _churn(trio, plan.churned)
            figures[f"{name}: seconds for {plan.churned} topics one by one"] = round(churn.in_a_row_s, 1)
            figures[f"{name}: seconds for {plan.churned} topics at once"] = round(churn.at_once_s, 1)
            say(f"{name}: {plan.churned} topics created and deleted one by one in {churn.in_a_row_s:.1f} s")
            if kind is headrace:
                figures["Headrace: longest delay of an event loop (s)"] = round(max(_delays(trio)), 3)
                assert plan.limit_s is None or max(failovers).seconds < plan.limit_s, figures
                logs = "".join(broker.log() for broker in trio.brokers.values())
                assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:3000]
    return figures


@contextmanager
def _cluster(directory: Path, *, is_headrace: bool) -> Iterator[Trio]:
    with ZooKeeper(directory / "zookeeper") as zookeeper:
        brokers: dict[int, Any] = {}
        for broker_id in IDS:
            if is_headrace:
                listener: dict[str, Any] = {"headrace.http.listener": free_port()}
                brokers[broker_id] = headrace(directory, zookeeper.address, broker_id, **listener)
            else:
                brokers[broker_id] = kafka(directory, zookeeper.address, broker_id)
        trio = Trio(zookeeper.address, brokers)
        try:
            trio.start()
            yield trio
        finally:
            trio.close()


def _names(plan: Plan) -> list[str]:
    return [f"topic-{number}" for number in range(plan.topics)]


def _create(trio: Trio, plan: Plan) -> float:
    """Create all topics, and return the seconds until they are in sync."""
    each = plan.partitions // plan.topics
    replicas = [_rotated(index) for index in range(each)]
    admin = AdminClient({"bootstrap.servers": trio.bootstrap})
    started = time.monotonic()
    for name in _names(plan):
        topic = NewTopic(name, each, replica_assignment=replicas)
        admin.create_topics([topic], operation_timeout=60)[name].result(120)
    _wait_for_sync(trio, plan)
    return time.monotonic() - started


def _rotated(by: int) -> list[int]:
    by %= len(IDS)
    return [*IDS[by:], *IDS[:by]]


def _wait_for_sync(trio: Trio, plan: Plan) -> None:
    client = trio.zookeeper
    paths = [
        f"/brokers/topics/{name}/partitions/{index}/state"
        for name in _names(plan)
        for index in range(plan.partitions // plan.topics)
    ]

    def unsynced() -> int:
        pending = [client.get_async(path) for path in paths]
        return sum(len(json.loads(answer.get()[0])["isr"]) < len(IDS) for answer in pending)

    wait_for(lambda: not unsynced(), "all replicas in sync", timeout_s=_WITHIN_S, interval_s=0.2)


def _fail_over(trio: Trio, plan: Plan, say: Say, title: str) -> Failover:
    """Kill the controller, wait until all leaders answer, and start it again."""
    trio.elect("preferred")
    _wait_for_sync(trio, plan)
    controller = trio.controller()
    survivors = [broker_id for broker_id in IDS if broker_id != controller]
    everything = [(name, index) for name in _names(plan) for index in range(plan.partitions // plan.topics)]
    orphans = deque(partition for partition in everything if _rotated(partition[1])[0] == controller)
    led = len(orphans)
    lost = threading.Event()
    assert trio.zookeeper.exists("/controller", watch=lambda _: lost.set())
    trio.brokers[controller].sigkill()
    assert lost.wait(60)
    started, began_s = time.monotonic(), _processor_s(trio, survivors)
    clients = [WireClient(trio.brokers[broker_id].bootstrap) for broker_id in survivors]
    try:
        while orphans:
            assert time.monotonic() - started < _WITHIN_S, f"{title}: {len(orphans)} partitions have no leader"
            if not _probe(clients, orphans):
                time.sleep(_PROBE_S)
        taken = Failover(time.monotonic() - started, _processor_s(trio, survivors) - began_s)
        answering = set().union(*(_answering(client, everything) for client in clients))
        assert answering == set(everything), f"{title}: {len(everything) - len(answering)} partitions have no leader"
    finally:
        for client in clients:
            client.close()
    next_controller = trio.controller()
    say(f"{title}: failover from broker {controller}, leader of {led}, to {next_controller} took {taken.seconds:.2f} s")
    started = time.monotonic()
    trio.brokers[controller].start()
    _wait_for_sync(trio, plan)
    say(f"{title}: broker {controller} started, and in sync after {time.monotonic() - started:.1f} s")
    return taken


def _processor_s(trio: Trio, broker_ids: Sequence[int]) -> float:
    """Return the processor time that brokers have used."""
    ticks = 0
    for broker_id in broker_ids:
        fields = Path(f"/proc/{trio.brokers[broker_id].pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _probe(clients: Sequence[WireClient], orphans: deque[Partition]) -> bool:
    """Ask for a few of the partitions, and remove those for which a broker answers. Return True if all did.

    One request for all of them would take a good part of a broker's time.
    """
    asked = [orphans.popleft() for _ in range(min(_PROBED_AT_ONCE, len(orphans)))]
    answering = set().union(*(_answering(client, asked) for client in clients))
    orphans.extend(partition for partition in asked if partition not in answering)
    return len(answering) == len(asked)


def _answering(client: WireClient, partitions: Sequence[Partition]) -> set[Partition]:
    """Return those partitions for which a broker answers as leader."""
    by_topic: dict[str, list[int]] = {}
    for name, index in partitions:
        by_topic.setdefault(name, []).append(index)
    topics = [
        {
            "name": name,
            "partitions": [{"partition_index": index, "timestamp": _LATEST} for index in indexes],
        }
        for name, indexes in by_topic.items()
    ]
    answer = client.ask(
        ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION, {"replica_id": -1, "isolation_level": 0, "topics": topics}
    )
    return {
        (topic["name"], partition["partition_index"])
        for topic in answer["topics"]
        for partition in topic["partitions"]
        if partition["error_code"] == "none"
    }


class _Churn(NamedTuple):
    in_a_row_s: float
    at_once_s: float


def _churn(trio: Trio, topics: int) -> _Churn:
    """Create and delete topics, each after the previous one, then all at once."""
    admin = AdminClient({"bootstrap.servers": trio.bootstrap})

    def create(names: Sequence[str]) -> None:
        wanted = [NewTopic(name, 3, 3) for name in names]
        for future in admin.create_topics(wanted, operation_timeout=60).values():
            future.result(120)

    def delete(names: Sequence[str]) -> None:
        for future in admin.delete_topics(list(names), operation_timeout=60).values():
            future.result(120)

    def in_a_row() -> None:
        for number in range(topics):
            create([f"churn-{number}"])
            delete([f"churn-{number}"])

    def at_once() -> None:
        names = [f"mass-{number}" for number in range(topics)]
        create(names)
        delete(names)

    churn = _Churn(_timed(in_a_row, trio), _timed(at_once, trio))
    left = [name for name in trio.zookeeper.get_children("/brokers/topics") if name.startswith(("churn", "mass"))]
    assert not left, f"{len(left)} topics are left over"
    for broker in trio.brokers.values():
        wait_for(
            lambda: not [*broker.data.glob("churn-*"), *broker.data.glob("mass-*")],  # noqa: B023
            f"no directory of a deleted topic in {broker.data}",
            timeout_s=_WITHIN_S,
        )
    return churn


def _timed(act: Callable[[], None], trio: Trio) -> float:
    started = time.monotonic()
    act()
    wait_for(lambda: not trio.zookeeper.get_children("/admin/delete_topics"), "all topics deleted", timeout_s=_WITHIN_S)
    return time.monotonic() - started


def _delays(trio: Trio) -> list[float]:
    """Return the longest delay (s) of each broker's event loop in the last minute."""
    found = []
    for broker in trio.brokers.values():
        url = f"http://127.0.0.1:{broker.settings['headrace.http.listener']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        found += [
            float(line.split()[-1])
            for line in text.splitlines()
            if line.startswith('headrace_loop_delay_seconds{quantile="1"')
        ]
    return found
