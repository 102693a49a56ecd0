"""Fetch: offsets, limits, epochs, sessions and long polls."""

import time
from collections.abc import Callable, Sequence

import pytest

from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.parity.both import Answers, Both, Names, Side, every_version
from tests.parity.records import START, Want, fetch, produce

CHANGED = (4, 7, 12, 13)
"""The oldest version, those with sessions, with flexible fields, and with topic ids."""


def write(both: Both, topic: str, *, partition: int = 0, batches: int = 1, count: int = 3, size: int = 10) -> None:
    for _ in range(batches):
        batch = build_batch([RecordData(b"k", bytes(size), START + number) for number in range(count)])
        both.ask(ApiKey.PRODUCE, 12, produce(topic, batch, partition=partition), case="write")


@pytest.fixture(scope="module")
def filled(session_both: Both) -> str:
    """A topic of two partitions, with 8 batches of 3 records in the first and one in the second."""
    topic = session_both.create(f"filled-{time.time_ns()}", 2)
    write(session_both, topic, batches=8)
    write(session_both, topic, partition=1)
    return topic


@every_version(ApiKey.FETCH)
def test_offsets(version: int, both: Both, filled: str) -> None:
    for offset in (0, 1, 2, 3, 13, 23, 24, 25, 10**6, -1, -5):
        for isolation in (0, 1):
            want = Want(topic=filled, offset=offset)
            both.ask(ApiKey.FETCH, version, fetch([want], isolation=isolation), case=f"{offset} {isolation}")


@every_version(ApiKey.FETCH, only=CHANGED)
def test_limits(version: int, both: Both, filled: str) -> None:
    for total in (0, 1, 100, 150, 300, 1 << 20):
        for first in (0, 1, 100, 150, 1 << 20):
            for offsets in ((0, 0), (4, 3), (24, 0)):
                wants = [
                    Want(topic=filled, offset=offsets[0], max_bytes=first),
                    Want(topic=filled, offset=offsets[1], partition=1),
                ]
                request = fetch(wants, max_bytes=total, max_wait=0)
                both.ask(ApiKey.FETCH, version, request, case=f"{total} {first} {offsets}")


@every_version(ApiKey.FETCH)
def test_unknown_partitions(version: int, both: Both, filled: str) -> None:
    known = Want(topic=filled, offset=21)
    for case, want in (
        ("topic", Want(topic="no-such-topic")),
        ("partition", Want(topic=filled, partition=7)),
        ("negative partition", Want(topic=filled, partition=-1)),
    ):
        both.ask(ApiKey.FETCH, version, fetch([want]), case=case)
        both.ask(ApiKey.FETCH, version, fetch([known, want]), case=f"{case} and a known partition")
    both.ask(ApiKey.FETCH, version, fetch([]), case="no partitions")


@every_version(ApiKey.FETCH, since=9)
def test_leader_epochs(version: int, both: Both, filled: str) -> None:
    for epoch in (0, 3):
        both.ask(ApiKey.FETCH, version, fetch([Want(topic=filled, leader_epoch=epoch)]), case=f"{epoch}")
    if version >= 12:
        for last in (0, 1, 5):
            both.ask(ApiKey.FETCH, version, fetch([Want(topic=filled, offset=3, last_epoch=last)]), case=f"last {last}")


@every_version(ApiKey.FETCH, only=CHANGED[1:])
def test_a_session_returns_changes(version: int, both: Both, name: Names) -> None:
    topic, late = both.create(name(), 3), both.create(name())
    for partition in (0, 1):
        write(both, topic, partition=partition)
    started: Answers | None = None

    def session(epoch: int) -> Callable[[Side], tuple[int, int]]:
        assert started is not None
        ids = {id(both.kafka): started.kafka["session_id"], id(both.headrace): started.headrace["session_id"]}
        return lambda side: (ids[id(side)], epoch)

    def ask(epoch: int, case: str, *wants: Want, forgotten: Sequence[Want] = ()) -> None:
        request = fetch(wants, max_wait=10, session=session(epoch), forgotten=forgotten)
        both.ask(ApiKey.FETCH, version, request, case=case)

    every = [Want(topic=topic, partition=partition) for partition in range(3)]
    started = both.ask(ApiKey.FETCH, version, fetch(every, session=lambda _: (0, 0)), case="full")
    ask(1, "the same offsets again")
    ask(2, "caught up", *(Want(topic=topic, partition=partition, offset=3) for partition in (0, 1)))
    ask(3, "nothing new")
    write(both, topic, partition=1)
    ask(4, "one has grown")
    ask(5, "caught up again", Want(topic=topic, partition=1, offset=6))
    ask(6, "one more", Want(topic=late))
    write(both, late)
    write(both, topic, partition=0)
    ask(7, "two have grown")
    ask(8, "one forgotten", forgotten=[Want(topic=topic, partition=0)])
    ask(9, "the other one forgotten", forgotten=[Want(topic=late)])
    ask(10, "out of range", Want(topic=topic, partition=2, offset=99))
    ask(11, "still out of range")
    ask(12, "back in range", Want(topic=topic, partition=2, offset=0))
    ask(13, "unknown partition", Want(topic=topic, partition=9))
    ask(14, "still unknown")
    ask(20, "wrong epoch")
    ask(15, "right epoch after a wrong one")
    ask(-1, "end of the session", Want(topic=topic, partition=1, offset=3))
    ask(16, "after its end")
    both.ask(ApiKey.FETCH, version, fetch(every, session=lambda _: (12345, 1)), case="unknown session")
    both.ask(ApiKey.FETCH, version, fetch(every, session=lambda _: (0, 5)), case="no session, but an epoch")


@every_version(ApiKey.FETCH, only=CHANGED)
def test_a_long_poll_waits_for_bytes(version: int, both: Both, name: Names) -> None:
    topic = both.create(name())
    size = len(build_batch([RecordData(b"k", bytes(10), START)] * 3))
    patient = fetch([Want(topic=topic)], min_bytes=2 * size, max_wait=20_000)
    both.send(ApiKey.FETCH, version, patient, on="poller")
    write(both, topic)
    write(both, topic)
    both.receive(ApiKey.FETCH, version, on="poller", case="woken by the second batch")
    both.ask(ApiKey.FETCH, version, fetch([Want(topic=topic)], min_bytes=3 * size, max_wait=5), case="timed out")
    both.ask(ApiKey.FETCH, version, fetch([Want(topic=topic, offset=6)], min_bytes=0, max_wait=20_000), case="no bytes")
