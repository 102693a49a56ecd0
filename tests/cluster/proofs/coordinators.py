"""Group and transaction coordinators move between Kafka and Headrace while clients use them.

`python -m tests.cluster.proofs.coordinators` moves all partitions of `__consumer_offsets` and `__transaction_state`
with Kafka's own tools, and checks that committed offsets never move backwards and that no transaction is split.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.clients.drivers.java_driver import run_tool
from tests.clients.transactional.confluent_client import ConfluentClient
from tests.clients.transactional.contract import END, Record
from tests.cluster.conftest import HEADRACE
from tests.cluster.mixed import GROUPS, KAFKAS, TRANSACTIONS, MixedCluster, mixed_cluster
from tests.cluster.proofs.coordinator_load import (
    Fence,
    GroupMember,
    Observer,
    Outcome,
    Source,
    Transaction,
    TransactionalProducer,
    Worker,
)
from tests.support.kafka_tools import ELECT, REASSIGN
from tests.support.waiting import wait_for

INTERNAL: Final = {GROUPS: 3, TRANSACTIONS: 2}
"""Topics and their numbers of partitions, as in the settings of `member`."""
PARTITIONS: Final = [
    {"topic": topic, "partition": partition} for topic, count in INTERNAL.items() for partition in range(count)
]
INPUT, OUTPUT = "input", "output"
_INPUT_PARTITIONS: Final = 8
_OUTPUT_PARTITIONS: Final = 4
_MEMBERS: Final = 4
"""Number of consumers in a group."""
_RATE: Final = 200
"""Records per second in `INPUT`."""
_SETTLE_S: Final = 120.0
_SETTINGS: Final = {
    "default.replication.factor": 2,
    "offsets.topic.num.partitions": INTERNAL[GROUPS],
    "transaction.state.log.num.partitions": INTERNAL[TRANSACTIONS],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    moves: int
    consumers: int
    producers: int
    seed: int
    pause_s: float = 4.0
    """Average time between two moves."""


@dataclass(slots=True, kw_only=True)
class Move:
    """The result of a move. Pauses are the longest times, in seconds, without a success of one client.

    The pauses of commits exclude the group of the restless consumer: if a member leaves just before a move, the next
    coordinator still considers it a member until its session times out.
    """

    number: int
    kind: str
    to: str
    seconds: float
    commits: int
    commit_pause_s: float
    transactions: int
    transaction_pause_s: float


@dataclass(slots=True, kw_only=True)
class Report:
    seed: int
    moves: list[Move] = field(default_factory=list)
    commits: int = 0
    records: int = 0
    observations: int = 0
    transactions: dict[str, int] = field(default_factory=dict)
    rejoins: int = 0
    """Assignments during the moves to consumers that stay in their group. Moving the coordinator should cause none."""
    errors: dict[str, int] = field(default_factory=dict)
    """Errors that clients saw and recovered from."""
    failures: list[str] = field(default_factory=list)


class Load:
    """All clients of a run."""

    def __init__(self, cluster: MixedCluster, plan: Plan) -> None:
        self.fence = Fence()
        bootstraps = list(cluster.bootstraps.values())
        groups = [f"group-{number}" for number in range(max(1, plan.consumers // _MEMBERS))]
        self.members = [
            GroupMember(
                bootstraps[number % len(bootstraps)],
                INPUT,
                groups[number % len(groups)],
                number,
                self.fence,
                strategy=("range", "cooperative-sticky")[number % len(groups) % 2],
                # The first member of the last group
                restless=number == len(groups) - 1 and len(groups) > 1,
            )
            for number in range(plan.consumers)
        ]
        self.producers = [
            TransactionalProducer(
                bootstraps[number % len(bootstraps)], OUTPUT, _OUTPUT_PARTITIONS, number, plan.seed, self.fence
            )
            for number in range(plan.producers)
        ]
        self.source = Source(cluster.bootstrap, INPUT, _INPUT_PARTITIONS, _RATE)
        self.groups = groups
        restless = {member.group for member in self.members if member.is_restless}
        self.staying = [member for member in self.members if member.group not in restless]
        """Members of groups without a restless one."""
        observed = dict.fromkeys(groups, (INPUT, _INPUT_PARTITIONS))
        observed |= dict.fromkeys((producer.group for producer in self.producers), (OUTPUT, 1))
        self.observers = [Observer(bootstrap, observed, self.fence) for bootstrap in bootstraps]

    @property
    def clients(self) -> list[Worker]:
        """The clients that must make progress after a move."""
        return [*self.members, *self.producers, *self.observers]

    @property
    def workers(self) -> list[Worker]:
        return [*self.clients, self.source]

    def wait_for_progress(self) -> None:
        """Wait until every client has succeeded twice more, so that at least one of its calls began after now."""
        before = {worker: worker.pauses.successes for worker in self.clients}

        def late() -> list[str]:
            return [
                worker.name
                for worker, successes in before.items()
                if worker.pauses.successes < successes + 2 and worker.failure is None
            ]

        try:
            wait_for(lambda: not late(), "every client makes progress", timeout_s=_SETTLE_S, interval_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"no progress within {_SETTLE_S:g} s: {', '.join(late())}") from error

    def values_of(self, group: str) -> set[int]:
        """Return the numbers that the members of a group have read."""
        return set().union(*(member.values for member in self.members if member.group == group))

    def failures(self) -> list[str]:
        return [f"{worker.name}: {worker.failure!r}" for worker in self.workers if worker.failure is not None]


def run(plan: Plan, base: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Start a cluster in the directory `base`, run the plan, and return its figures. Raises AssertionError."""
    with mixed_cluster(base, _SETTINGS, kafkas=KAFKAS, note=lambda step: say(f"Starting {step}")) as cluster:
        report = move_coordinators(cluster, plan, say)
    assert not report.failures, "\n".join(report.failures)
    return asdict(report)


def move_coordinators(cluster: MixedCluster, plan: Plan, note: Callable[[str], None]) -> Report:
    """Create the topics, move the coordinators, and return a report. Its `failures` are empty if all checks passed."""
    kafkas = tuple(cluster.kafkas)
    for name, count in INTERNAL.items():
        replicas = [rotated((*kafkas, HEADRACE), index % len(kafkas), within=len(kafkas)) for index in range(count)]
        cluster.create_topic(name, replicas, cleanup_policy="compact", min_insync_replicas=1)
    everywhere = cluster.brokers
    for topic, count in ((INPUT, _INPUT_PARTITIONS), (OUTPUT, _OUTPUT_PARTITIONS)):
        cluster.create_topic(topic, [rotated(everywhere, index)[:2] for index in range(count)])
    report = Report(seed=plan.seed)
    chance = random.Random(plan.seed)
    load = Load(cluster, plan)
    for worker in load.workers:
        worker.start()
    try:
        load.wait_for_progress()
        note(f"{plan.consumers} consumers and {plan.producers} transactional producers run")
        joins = _joins(load)
        for number in range(plan.moves):
            time.sleep(chance.uniform(0, 2 * plan.pause_s))
            report.moves.append(_move(cluster, load, number, note))
        report.rejoins = _joins(load) - joins
        load.source.stop()
        load.source.join()
        _wait_until_all_is_read(load)
    except AssertionError as error:
        report.failures.append(str(error))
    finally:
        for worker in load.workers:
            worker.stop()
        for worker in load.workers:
            worker.join()
    note("The clients have stopped; checking what they have seen")
    try:
        _check(cluster, load, report)
    finally:
        for observer in load.observers:
            observer.disconnect()
    return report


def rotated(brokers: Sequence[int], by: int, *, within: int | None = None) -> list[int]:
    """Return the brokers with the first `within` of them rotated by `by`."""
    first, rest = list(brokers[:within]), list(brokers[len(brokers) if within is None else within :])
    by %= len(first)
    return [*first[by:], *first[:by], *rest]


def _move(cluster: MixedCluster, load: Load, number: int, note: Callable[[str], None]) -> Move:
    """Move all coordinators: to Headrace with even numbers, to the next Kafka broker with odd ones."""
    kafkas = list(cluster.kafkas)
    to = HEADRACE if number % 2 == 0 else kafkas[number // 2 % len(kafkas)]
    before = kafkas[(number - 1) // 2 % len(kafkas)] if to == HEADRACE else HEADRACE
    by_election = number % 4 in (0, 3)
    for worker in load.clients:
        worker.pauses.reset()
    started = time.monotonic()
    # A leader that stays among the replicas remains the leader.
    replicas = [to, *(broker for broker in cluster.brokers if broker != to and (by_election or broker != before))]
    _reassign(cluster, replicas)
    if by_election:
        _tool(cluster, ELECT, {"partitions": PARTITIONS}, "--election-type", "preferred", file="--path-to-json-file")
    for topic, count in INTERNAL.items():
        cluster.wait_for_leaders(topic, [to] * count)
    seconds = time.monotonic() - started
    load.wait_for_progress()
    move = Move(
        number=number + 1,
        kind="election" if by_election else "reassignment",
        to="Headrace" if to == HEADRACE else f"Kafka {to}",
        seconds=round(seconds, 1),
        commits=sum(member.pauses.successes for member in load.members),
        commit_pause_s=round(max(member.pauses.longest_s for member in load.staying), 1),
        transactions=sum(producer.pauses.successes for producer in load.producers),
        transaction_pause_s=round(max(producer.pauses.longest_s for producer in load.producers), 1),
    )
    note(
        f"{move.number:2}. {move.kind} to {move.to}: {move.seconds} s, longest pause of a consumer's commits "
        f"{move.commit_pause_s} s, of a producer's transactions {move.transaction_pause_s} s"
    )
    return move


def _reassign(cluster: MixedCluster, replicas: Sequence[int]) -> None:
    """Place all partitions of the internal topics on `replicas`, and wait until Kafka's tool confirms it."""
    wanted = {"version": 1, "partitions": [{**partition, "replicas": list(replicas)} for partition in PARTITIONS]}
    file = "--reassignment-json-file"
    _tool(cluster, REASSIGN, wanted, "--execute", file=file)
    wait_for(
        lambda: _tool(cluster, REASSIGN, wanted, "--verify", file=file).count("is completed") == len(PARTITIONS),
        f"the reassignment to {list(replicas)}",
        timeout_s=_SETTLE_S,
    )


def _tool(cluster: MixedCluster, tool: str, content: Mapping[str, Any], *options: str, file: str) -> str:
    """Run one of Kafka's tools with a JSON file, which is the argument of the option `file`."""
    path = cluster.base / "plan.json"
    path.write_text(json.dumps(content))
    return run_tool(tool, "--bootstrap-server", cluster.bootstrap, *options, file, str(path))


def _joins(load: Load) -> int:
    return sum(member.joins for member in load.staying)


def _wait_until_all_is_read(load: Load) -> None:
    sent = load.source.sent

    def missing() -> list[str]:
        read_by = {group: load.values_of(group) for group in load.groups}
        return [f"{group}: {sent - len(values)}" for group, values in read_by.items() if len(values) < sent]

    try:
        wait_for(lambda: not missing(), "all records are read", timeout_s=_SETTLE_S, interval_s=0.2)
    except AssertionError as error:
        raise AssertionError(f"unread records of {sent}: {', '.join(missing())}") from error


# Checks


def _check(cluster: MixedCluster, load: Load, report: Report) -> None:
    report.records = load.source.sent
    report.commits = sum(member.commits for member in load.members)
    report.observations = sum(observer.observations for observer in load.observers)
    errors: Counter[str] = Counter()
    for worker in load.workers:
        errors += worker.errors
    report.errors = dict(errors)
    outcomes = {key: value for producer in load.producers for key, value in producer.outcomes.items()}
    report.transactions = {str(outcome.value): count for outcome, count in Counter(outcomes.values()).items()}
    report.failures += load.failures()
    if report.failures:
        return
    for observer in load.observers:
        for group in observer.groups:
            observer.observe(group, timeout_s=60)
        report.failures += observer.backwards
    for producer in load.producers:
        report.failures += [f"{producer.name} was replaced after: {error}" for error in producer.fatal]
        latest = max(
            (key.number for key, outcome in producer.outcomes.items() if outcome is Outcome.COMMITTED), default=None
        )
        found = load.observers[0].observe(producer.group, timeout_s=60).get(0)
        if found != latest and Outcome.UNKNOWN not in producer.outcomes.values():
            report.failures.append(f"{producer.group} has committed {found}, but its last transaction is {latest}")
    report.failures += split(outcomes, read_output(cluster.bootstrap, _OUTPUT_PARTITIONS))


def read_output(bootstrap: str, partitions: int) -> list[Record]:
    """Return the committed records of `OUTPUT`, after the transactional producers have stopped."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(partitions):
        producer.produce(OUTPUT, END.encode(), partition=partition)
    if producer.flush(60):
        raise AssertionError(f"{OUTPUT} cannot be written")
    return ConfluentClient(bootstrap).read_committed(OUTPUT, partitions)


def split(
    outcomes: Mapping[Transaction, Outcome], records: Sequence[Record], partitions: int = _OUTPUT_PARTITIONS
) -> list[str]:
    """Describe errors in committed records: transactions that are partial, lost, repeated or aborted."""
    found: dict[str, Counter[int]] = defaultdict(Counter)
    latest: dict[tuple[int, int], int] = {}
    wrong: list[str] = []
    for record in records:
        found[record.value][record.partition] += 1
        producer, number = map(int, record.value.split(":"))
        before = latest.get((producer, record.partition), 0)
        if number < before:
            wrong.append(f"partition {record.partition}: {record.value} after {producer}:{before}")
        latest[producer, record.partition] = number
    whole = Counter(dict.fromkeys(range(partitions), 1))
    for transaction, outcome in outcomes.items():
        in_partitions = found.pop(transaction.value, Counter())
        allowed = {
            Outcome.COMMITTED: (whole,),
            Outcome.ABORTED: (Counter[int](),),
            Outcome.UNKNOWN: (whole, Counter[int]()),
        }[outcome]
        if in_partitions not in allowed:
            wrong.append(f"transaction {transaction.value}, {outcome.value}: read {dict(in_partitions)} by partition")
    return wrong + [f"{value} was never sent" for value in found]


# The program


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--consumers", type=int, default=20)
    parser.add_argument("--producers", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--directory", type=Path, help="keep data and logs in this empty directory")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.proofs.coordinators", description=__doc__)
    add_options(parser)
    return prove(parser.parse_args(arguments))


def prove(options: argparse.Namespace) -> int:
    """Print the report, and return the exit status."""
    started = time.monotonic()

    def note(text: str) -> None:
        print(f"{time.monotonic() - started:5.0f} s  {text}", file=sys.stderr, flush=True)

    plan = Plan(moves=options.moves, consumers=options.consumers, producers=options.producers, seed=options.seed)
    note(f"Seed {plan.seed}")
    with tempfile.TemporaryDirectory(prefix="headrace-coordinators-") as temporary:
        base = (options.directory or Path(temporary)).resolve()
        base.mkdir(parents=True, exist_ok=True)
        with mixed_cluster(base, _SETTINGS, kafkas=KAFKAS, note=lambda step: note(f"Starting {step}")) as cluster:
            report = move_coordinators(cluster, plan, note)
    print(json.dumps(asdict(report), indent=2) if options.json else "\n".join(table(report)))
    return 1 if report.failures else 0


def table(report: Report) -> list[str]:
    """Return the lines of the report for a terminal."""
    lines = ["move  kind          to          seconds  commits  longest pause  transactions  longest pause"]
    for move in report.moves:
        groups = f"{move.commits:7}  {move.commit_pause_s:11.1f} s"
        transactions = f"{move.transactions:12}  {move.transaction_pause_s:11.1f} s"
        lines.append(f"{move.number:4}  {move.kind:12}  {move.to:10}  {move.seconds:7.1f}  {groups}  {transactions}")
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.transactions.items()))
    errors = ", ".join(f"{count} {name}" for name, count in sorted(report.errors.items()))
    lines += [
        "",
        f"{report.records} records, {report.commits} commits, {report.observations} reads of committed offsets",
        f"transactions: {outcomes}",
        f"assignments of consumers that stayed in their group: {report.rejoins}",
        f"errors that clients recovered from: {errors or 'none'}",
        "",
    ]
    if report.failures:
        return [*lines, f"Failed with seed {report.seed}:", *report.failures]
    return [*lines, f"Committed offsets never moved backwards, and no transaction was split (seed {report.seed})."]


if __name__ == "__main__":
    sys.exit(main())
