"""Random requests of several producers to both transaction coordinators."""

import random
import uuid
from typing import Any, Final, NamedTuple

from headrace.wire.apis import ApiKey
from tests.parity.both import Both, Side
from tests.support.waiting import wait_for

_NO_PRODUCER: Final = (-1, -1)
_LOADING: Final = ("coordinator_load_in_progress", "not_coordinator")
_CONNECTION: Final = "transactions"


class Step(NamedTuple):
    """A request of the `producer`-th identity, with `epoch_delta` added to its epoch."""

    kind: str
    producer: int
    epoch_delta: int
    commit: bool


class Outcome(NamedTuple):
    code: str
    detail: Any = None
    identity: tuple[int, int] | None = None


def compare_random_requests(both: Both, topic: str, seed: int) -> None:
    chance = random.Random(seed)
    name = f"walk-{seed}-{uuid.uuid4().hex[:8]}"
    for side in both.sides:
        _find_coordinator(side, name)
    identities: list[list[tuple[int, int]]] = [[_NO_PRODUCER], [_NO_PRODUCER]]
    steps: list[Step] = []
    for _ in range(chance.randint(4, 14)):
        newest = len(identities[0]) - 1
        producer = newest if chance.random() < 0.75 else chance.randint(0, newest)
        kinds = ("init", "continue", "add", "add", "add", "end 5", "end 5", "end 4", "end 4", "verify", "offsets")
        steps.append(Step(chance.choice(kinds), producer, chance.choice((0, 0, 0, 0, 0, 1, -1)), chance.random() < 0.5))
        kafka, headrace = (
            _ask(side, name, topic, steps[-1], known[producer])
            for side, known in zip(both.sides, identities, strict=True)
        )
        if steps[-1].kind == "end 5" and headrace.code == "producer_fenced" != kafka.code:
            return  # Kafka takes it for a retry: decision 081
        assert kafka[:2] == headrace[:2], f"{steps}: Kafka answers {kafka}, Headrace {headrace}"
        if kafka.identity is not None and headrace.identity is not None:
            identities[0].append(kafka.identity)
            identities[1].append(headrace.identity)
        for side in both.sides:
            _wait_for_the_end(side, name)


def _find_coordinator(side: Side, name: str) -> None:
    def found() -> bool:
        answer = side.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [name]}, _CONNECTION)
        described = side.ask(ApiKey.END_TXN, 4, _end(name, _NO_PRODUCER, commit=True), _CONNECTION)
        return answer["coordinators"][0]["error_code"] == "none" and described["error_code"] not in _LOADING

    wait_for(found, "a coordinator")


def _wait_for_the_end(side: Side, name: str) -> None:
    def is_over() -> bool:
        answer = side.ask(ApiKey.LIST_TRANSACTIONS, 0, {"state_filters": [], "producer_id_filters": []}, _CONNECTION)
        states = {item["transactional_id"]: item["transaction_state"] for item in answer["transaction_states"]}
        return not str(states.get(name, "")).startswith("Prepare")

    wait_for(is_over, "the end of the transaction")


def _end(name: str, identity: tuple[int, int], *, commit: bool) -> dict[str, Any]:
    return {
        "transactional_id": name,
        "producer_id": identity[0],
        "producer_epoch": identity[1],
        "committed": commit,
    }


def _ask(side: Side, name: str, topic: str, step: Step, identity: tuple[int, int]) -> Outcome:
    producer_id, epoch = identity
    if producer_id != -1:
        epoch = max(epoch + step.epoch_delta, 0)
    named = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch}
    if step.kind in ("init", "continue"):
        if step.kind == "init":
            named |= {"producer_id": -1, "producer_epoch": -1}
        answer = side.ask(ApiKey.INIT_PRODUCER_ID, 5, named | {"transaction_timeout": 60_000}, _CONNECTION)
        return _with_identity(answer)
    if step.kind == "add":
        message = {f"v3_and_below_{field}": value for field, value in named.items()}
        message["v3_and_below_topics"] = [{"name": topic, "partitions": [0]}]
        answer = side.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, message, _CONNECTION)
        return Outcome(_partition_code(answer["results_by_topic_v3_and_below"]))
    if step.kind == "verify":
        transaction = named | {"verify_only": step.commit, "topics": [{"name": topic, "partitions": [1]}]}
        answer = side.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [transaction]}, _CONNECTION)
        return Outcome(_partition_code(answer["results_by_transaction"][0]["topic_results"]))
    if step.kind == "offsets":
        return Outcome(side.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, named | {"group_id": "g"}, _CONNECTION)["error_code"])
    version = int(step.kind[-1])
    answer = side.ask(ApiKey.END_TXN, version, _end(name, (producer_id, epoch), commit=step.commit), _CONNECTION)
    return _with_identity(answer) if version >= 5 else Outcome(answer["error_code"])


def _with_identity(answer: dict[str, Any]) -> Outcome:
    identity = answer["producer_id"], answer["producer_epoch"]
    return Outcome(answer["error_code"], identity[1], identity if answer["error_code"] == "none" else None)


def _partition_code(topics: list[dict[str, Any]]) -> str:
    return str(topics[0]["results_by_partition"][0]["partition_error_code"])
