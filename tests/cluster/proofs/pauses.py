"""Stop leaders with SIGSTOP beyond their sessions, and let them continue with requests in their sockets.

Such a leader does not know yet that it has been replaced. It may append records and acknowledge them with
acks=1, as Kafka does. It must not acknowledge them with acks=all or show them to consumers, and has to truncate them.
"""

import random
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.clock import now_ms
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.cluster.conftest import leaders
from tests.cluster.proofs.kills import (
    REPLICATED,
    compare_all,
    defects_in,
    name_of,
    rotated,
    truncations_by_headrace,
)
from tests.cluster.proofs.load import Load, Outcome
from tests.cluster.proofs.reading import check, read
from tests.cluster.proofs.rig import HEADRACE, Rig, Say
from tests.support.replica_logs import batches
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

TOPIC: Final = "exact"
STALE_TOPIC: Final = "stale"
"""Topic that receives only the requests that wait for a stopped leader."""
_PARTITIONS: Final = 6
_REQUESTS: Final = 10
_PRODUCE_VERSION: Final = 9
_FETCH_VERSION: Final = 12
_TIMEOUT_MS: Final = 3000


class Plan(NamedTuple):
    rounds: int
    """Number of pauses of Headrace, and of Kafka brokers."""
    seed: int
    rate: float = 50.0


class _Sent(NamedTuple):
    """A request to a stopped leader."""

    client: WireClient
    partition: int
    acks: int
    value: bytes


class _Answered(NamedTuple):
    """An acknowledgement by a leader that had been stopped."""

    partition: int
    offset: int
    value: bytes


class _Figures:
    def __init__(self) -> None:
        self.partitions = 0
        self.refused = 0
        self.acknowledged: list[_Answered] = []
        """With acks=all."""
        self.acknowledged_by_one: list[_Answered] = []
        self.shown = 0


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if anything was acknowledged or shown that is not in the logs."""
    chance = random.Random(plan.seed)
    figures = _Figures()
    with Rig(base, kafkas=(1, 2), headraces=(HEADRACE,), settings=REPLICATED) as rig:
        brokers = sorted(rig.brokers)
        assignment = [rotated(brokers, index) for index in range(_PARTITIONS)]
        for topic in (TOPIC, STALE_TOPIC):
            rig.create(topic, assignment, min_insync_replicas=2)
        victims = [HEADRACE] * plan.rounds + [brokers[number % 2] for number in range(plan.rounds)]
        chance.shuffle(victims)
        load = Load(rig.bootstrap, TOPIC, _PARTITIONS, transactional=1, rate=plan.rate, seed=plan.seed)
        with load:
            for number, victim in enumerate(victims):
                _lead(rig, victim)
                load.progress()
                _pause(rig, victim, number, figures)
                say(
                    f"{number + 1}/{len(victims)}: {name_of(victim)} follows again; {load.acknowledged} records of "
                    f"the load acknowledged; so far {figures.refused} late requests with acks=all refused, "
                    f"{len(figures.acknowledged)} acknowledged, {len(figures.acknowledged_by_one)} with acks=1"
                )
                load.check()
            load.progress()
        say(f"stopped: {load.acknowledged} records acknowledged; reading and comparing")
        rig.wait_for_sync()
        found = read(rig.bootstrap, TOPIC, _PARTITIONS)
        wrong = check(found, load.written).all
        compared = compare_all(rig, TOPIC, STALE_TOPIC)
        missing = _missing(rig, figures.acknowledged)
        wrong += [f"{answered} was acknowledged with acks=all, and is not in the log" for answered in missing]
        truncated = _missing(rig, figures.acknowledged_by_one)
        wrong += defects_in(rig.headraces)
        assert not wrong, f"{len(wrong)} wrong: " + "\n".join(wrong[:20])
        by_headrace = truncations_by_headrace(rig)
    return {
        "seed": plan.seed,
        "pauses of Headrace": plan.rounds,
        "pauses of Kafka": plan.rounds,
        "partitions led by the stopped brokers": figures.partitions,
        "late requests with acks=all": figures.refused + len(figures.acknowledged),
        "of them acknowledged, and in the logs": len(figures.acknowledged),
        "of them acknowledged falsely": 0,
        "late records acknowledged with acks=1": len(figures.acknowledged_by_one),
        "of them truncated": len(truncated),
        "bytes shown falsely to consumers": 0,
        "truncations by Headrace": by_headrace,
        "records acknowledged": load.acknowledged,
        "records read": found.size,
        "transactions committed": load.outcomes[Outcome.COMMITTED],
        "lost": 0,
        "duplicated": 0,
        "out of order": 0,
        "batches equal on 3 replicas": compared.batches,
        "bytes equal on 3 replicas": compared.size,
    }


def _pause(rig: Rig, victim: int, number: int, figures: _Figures) -> None:
    """Stop a broker until others lead its partitions, send it requests, and let it continue."""
    led = [partition for partition, state in rig.states(STALE_TOPIC).items() if state.leader == victim]
    assert led, f"{name_of(victim)} leads nothing"
    figures.partitions += len(led)
    broker = rig.brokers[victim]
    ends = rig.high_watermarks(STALE_TOPIC)
    others = [broker_id for broker_id in rig.brokers if broker_id != victim]
    clients = [WireClient(broker.bootstrap) for _ in range(2 * _REQUESTS * len(led) + len(led))]
    try:
        broker.pause()
        try:
            wait_for(lambda: victim not in _leaders(rig), f"others than {name_of(victim)} lead", timeout_s=120)
            rig.wait_for_brokers(*others)
            # Until the others hear of their leadership, they may still copy from the victim, and commit its records.
            wait_for(
                lambda: (
                    not any(victim in leaders(rig.brokers[other].bootstrap, STALE_TOPIC).values() for other in others)
                ),
                f"the others know that {name_of(victim)} does not lead",
                timeout_s=120,
            )
            unused = iter(clients)
            sent = [
                _send(next(unused), partition, acks, b"%d %d %d %d" % (number, partition, acks, index))
                for partition in led
                for index in range(_REQUESTS)
                for acks in (1, -1)
            ]
            fetching = [(next(unused), partition) for partition in led]
            for client, partition in fetching:
                _fetch(client, partition, ends[partition])
        finally:
            broker.resume()
        for request in sent:
            _note(request, figures)
        for client, partition in fetching:
            figures.shown += _shown(client, partition)
        assert not figures.shown, f"{name_of(victim)} showed {figures.shown} bytes that were never committed"
        rig.wait_for_brokers(*rig.brokers)
        rig.wait_for_sync()
    finally:
        for client in clients:
            client.close()


def _leaders(rig: Rig) -> set[int]:
    return {state.leader for topic in rig.topics() for state in rig.states(topic).values()}


def _lead(rig: Rig, broker: int) -> None:
    """Make a broker leader of the partitions whose preferred leader it is."""
    rig.elect_preferred_leaders()
    rig.wait_for_sync()
    wait_for(lambda: broker in _leaders(rig), f"{name_of(broker)} leads", timeout_s=60)


def _send(client: WireClient, partition: int, acks: int, value: bytes) -> _Sent:
    batch = build_batch([RecordData(None, value, now_ms())])
    fields = {
        "acks": acks,
        "timeout": _TIMEOUT_MS,
        "topic_data": [{"name": STALE_TOPIC, "partition_data": [{"index": partition, "records": batch}]}],
    }
    client.send(ApiKey.PRODUCE, _PRODUCE_VERSION, fields)
    return _Sent(client, partition, acks, value)


def _fetch(client: WireClient, partition: int, offset: int) -> None:
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    fields = {
        "replica_id": -1,
        "max_wait": 2000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [{"topic": STALE_TOPIC, "partitions": [wanted]}],
        "forgotten_topics_data": [],
    }
    client.send(ApiKey.FETCH, _FETCH_VERSION, fields)


def _shown(client: WireClient, partition: int) -> int:
    """Fetch at the end of the committed records, and return the number of bytes in the reply."""
    try:
        answer = client.receive(ApiKey.FETCH, _FETCH_VERSION)
    except ConnectionError:
        return 0
    return sum(len(found["records"] or b"") for topic in answer["responses"] for found in topic["partitions"])


def _note(request: _Sent, figures: _Figures) -> None:
    try:
        answer = request.client.receive(ApiKey.PRODUCE, _PRODUCE_VERSION)
    except ConnectionError:
        error, offset = "closed", -1
    else:
        (result,) = answer["responses"][0]["partition_responses"]
        error, offset = result["error_code"], result["base_offset"]
    if request.acks == 1:
        if error == "none":
            figures.acknowledged_by_one.append(_Answered(request.partition, offset, request.value))
    elif error == "none":
        figures.acknowledged.append(_Answered(request.partition, offset, request.value))
    else:
        figures.refused += 1


def _missing(rig: Rig, acknowledged: list[_Answered]) -> list[_Answered]:
    """Return the records that are not where they were acknowledged."""
    data = {
        (partition, batch.header.base_offset): batch.data
        for partition in rig.replicas(STALE_TOPIC)
        for batch in batches(rig.brokers[HEADRACE].data / f"{STALE_TOPIC}-{partition}")
    }
    return [
        answered
        for answered in acknowledged
        if answered.value not in data.get((answered.partition, answered.offset), b"")
    ]
