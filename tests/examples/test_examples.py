"""The programs in `examples/`, killed at the worst moment and restarted: lost and repeated records."""

import json
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.killable_broker import KillableBroker, killable_broker
from tests.support.topics import create_topic, read_values
from tests.support.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED = Path(__file__).parent / "killed.py"
ORDERS = range(40)
BATCH = 10


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KillableBroker]:
    with killable_broker(tmp_path / "broker", {"group.initial.rebalance.delay.ms": 0}) as broker:
        for topic in ("orders", "invoices"):
            create_topic(broker.bootstrap, topic)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in ORDERS:
            producer.produce("orders", json.dumps({"order": number, "cents": 100 * number}).encode(), b"%d" % number)
        assert producer.flush(30) == 0
        yield broker


def invoices(broker: KillableBroker, isolation: str = "read_committed") -> list[int]:
    """Return the order numbers of all invoices, repeated if an order was invoiced repeatedly."""
    found = [json.loads(value) for value in read_values(broker.bootstrap, "invoices", isolation=isolation)]
    assert all(invoice["cents"] == 120 * invoice["order"] for invoice in found)
    return [invoice["order"] for invoice in found]


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def kill_and_restart(broker: KillableBroker, program: str, *moment: str) -> None:
    """Kill `program` at `moment`, then run it again until it has invoiced the last order."""
    command = [str(EXAMPLES / program), "--bootstrap", broker.bootstrap, "--group", f"group-{uuid.uuid4().hex[:8]}"]
    with running([str(KILLED), *moment, *command]) as first:
        _, errors = first.communicate(timeout=60)
        assert first.returncode == -signal.SIGKILL, errors
    with running(command) as second:

        def is_done() -> bool:
            if second.poll() is not None:
                raise AssertionError(second.communicate()[1])
            return ORDERS[-1] in invoices(broker)

        wait_for(is_done, "the last order is invoiced", timeout_s=60, interval_s=0.2)


def lost(numbers: list[int]) -> list[int]:
    return sorted(set(ORDERS) - set(numbers))


def repeated(numbers: list[int]) -> list[int]:
    return sorted(number for number, count in Counter(numbers).items() if count > 1)


@pytest.mark.slow
def test_at_most_once_loses_the_orders_in_flight(broker: KillableBroker) -> None:
    kill_and_restart(broker, "at_most_once.py", "after", "Consumer.commit", "2")
    assert len(lost(invoices(broker))) == BATCH
    assert repeated(invoices(broker)) == []


@pytest.mark.slow
def test_at_least_once_repeats_the_orders_in_flight(broker: KillableBroker) -> None:
    kill_and_restart(broker, "at_least_once.py", "after", "Producer.flush", "2")
    assert lost(invoices(broker)) == []
    assert len(repeated(invoices(broker))) == BATCH


def test_readers_of_committed_records_see_every_order_exactly_once_and_others_do_not(broker: KillableBroker) -> None:
    kill_and_restart(broker, "exactly_once.py", "before", "Producer.commit_transaction", "2")
    assert sorted(invoices(broker)) == list(ORDERS)
    wait_for(lambda: len(repeated(invoices(broker, "read_uncommitted"))) == BATCH, "records of the aborted batch")


def test_exactly_once_keeps_the_last_commit(broker: KillableBroker) -> None:
    kill_and_restart(broker, "exactly_once.py", "after", "Producer.commit_transaction", "2")
    assert sorted(invoices(broker)) == list(ORDERS)
