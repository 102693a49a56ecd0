"""An administrator who creates, grows, deletes and reassigns topics, and elects leaders, while controllers change."""

import json
import random
import threading
from collections import Counter
from typing import Any, Final

from kazoo.exceptions import KazooException

from headrace.wire.apis import ApiKey
from tests.cluster.proofs.rig import Rig
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

_TIMEOUT_MS: Final = 2000
_PAUSE_S: Final = 0.15
_TOPICS: Final = (4, 14)
"""Below the first number of topics they are only created, above the second only deleted."""
_REASSIGN_NODE: Final = "/admin/reassign_partitions"


class UnansweredError(Exception):
    """The controller did not answer, or refused: the operation may have happened or not."""


class Administrator(threading.Thread):
    """Works until `end`, or between `resume` and `rest`.

    It remembers what must be true: a topic whose creation was confirmed exists, one whose deletion was confirmed does
    not, and replicas are where the last confirmed reassignment has put them. After unconfirmed operations, both
    results are right.
    """

    def __init__(self, rig: Rig, seed: int, fixed: str) -> None:
        """The topic `fixed` is reassigned, but not deleted."""
        super().__init__(name="administrator")
        self.operations: Counter[str] = Counter()
        """Confirmed operations by name."""
        self.unconfirmed = 0
        self.failure: BaseException | None = None
        self.topics: dict[str, bool] = {}
        """Topics; True if their creation was confirmed and no deletion was requested."""
        self.deleted: set[str] = set()
        """Topics whose deletion was confirmed."""
        self.placed: dict[tuple[str, int], list[list[int]]] = {}
        """The replicas that a partition may have, for partitions that were reassigned."""
        self.moved: set[str] = set()
        """Partitions whose reassignment was requested, as in the names of their directories."""
        self._asked: dict[tuple[str, int], list[int]] = {}
        """Reassignments by node, which a controller may notice after it has confirmed a later request."""
        self._fixed = fixed
        self._rig = rig
        self._chance = random.Random(seed)
        self._created = 0
        self._ending = threading.Event()
        self._working = threading.Event()
        self._resting = threading.Event()

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                if not self._working.wait(0.05):
                    self._resting.set()
                    continue
                self._operate()
                self._ending.wait(_PAUSE_S)
        except BaseException as failure:  # noqa: BLE001  # reported by `rest`
            self.failure = failure
        self._resting.set()

    def resume(self) -> None:
        self._resting.clear()
        self._working.set()

    def rest(self) -> None:
        """Wait until no operation is in progress. Raises AssertionError if the administrator has failed."""
        self._working.clear()
        assert self._resting.wait(120), "the administrator does not rest"
        assert self.failure is None, f"the administrator failed: {self.failure!r}"

    def end(self) -> None:
        self._ending.set()
        self.join(120)

    def progress(self, count: int) -> None:
        """Wait until more operations are confirmed."""
        wanted = self.operations.total() + count
        wait_for(
            lambda: self.operations.total() >= wanted or self.failure is not None,
            "operations of the administrator",
            timeout_s=120,
        )

    # Operations

    def _operate(self) -> None:
        few, many = _TOPICS
        operations = [self._create_topic] * 3 + [self._delete_topic] * 2 + [self._grow, self._elect]
        operations += [self._reassign] * 4 + [self._reassign_by_node]
        if len(self.topics) < few:
            operations = [self._create_topic]
        elif len(self.topics) > many:
            operations = [self._delete_topic]
        operation = self._chance.choice(operations)
        try:
            operation()
        except (UnansweredError, OSError, KazooException):
            self.unconfirmed += 1
        else:
            self.operations[operation.__name__.strip("_").replace("_", " ")] += 1

    def _create_topic(self) -> None:
        self._created += 1
        name = f"topic-{self._created}"
        self.topics[name] = False
        new = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [
                {"partition_index": index, "broker_ids": self._replicas()}
                for index in range(self._chance.randint(1, 5))
            ],
            "configs": [],
        }
        fields = {"topics": [new], "timeout": _TIMEOUT_MS, "validate_only": False}
        _confirm(self._ask(ApiKey.CREATE_TOPICS, 5, fields)["topics"])
        self.topics[name] = True

    def _delete_topic(self) -> None:
        name = self._chance.choice(list(self.topics))
        self.topics[name] = False
        answer = self._ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": [name], "timeout": _TIMEOUT_MS})
        (result,) = answer["responses"]
        if result["error_code"] not in ("none", "unknown_topic_or_partition"):
            raise UnansweredError(result["error_code"])
        if result["error_code"] == "none":
            self.deleted.add(name)
        del self.topics[name]

    def _grow(self) -> None:
        name = self._existing()
        count = len(self._rig.replicas(name)) + 1
        fields = {
            "topics": [{"name": name, "count": count, "assignments": None}],
            "timeout": _TIMEOUT_MS,
            "validate_only": False,
        }
        _confirm(self._ask(ApiKey.CREATE_PARTITIONS, 2, fields)["results"])

    def _elect(self) -> None:
        fields = {"election_type": 0, "topic_partitions": None, "timeout": _TIMEOUT_MS}
        answer = self._ask(ApiKey.ELECT_LEADERS, 2, fields)
        if answer["error_code"] != "none":
            raise UnansweredError(answer["error_code"])

    def _reassign(self) -> None:
        name = self._chance.choice([self._existing(), self._fixed])
        moves = self._moves(name)
        partitions = [{"partition_index": index, "replicas": replicas} for index, replicas in moves.items()]
        fields = {"timeout": _TIMEOUT_MS, "topics": [{"name": name, "partitions": partitions}]}
        self._expect(name, moves, is_confirmed=False)
        answer = self._ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields)
        _confirm([answer, *answer["responses"][0]["partitions"]] if answer["error_code"] == "none" else [answer])
        self._expect(name, moves, is_confirmed=True)

    def _reassign_by_node(self) -> None:
        """Reassign as the tools before KIP-455 did, also while there is no controller."""
        name = self._existing()
        moves = self._moves(name)
        partitions = [{"topic": name, "partition": index, "replicas": brokers} for index, brokers in moves.items()]
        self._expect(name, moves, is_confirmed=False)
        content = json.dumps({"version": 1, "partitions": partitions}).encode()
        self._asked |= {(name, index): replicas for index, replicas in moves.items()}
        self._rig.zookeeper.create(_REASSIGN_NODE, content)

    def _existing(self) -> str:
        known = [name for name, exists in self.topics.items() if exists]
        return self._chance.choice(known) if known else self._fixed

    def _moves(self, name: str) -> dict[int, list[int]]:
        """Return new replicas for some partitions of a topic."""
        partitions = list(self._rig.replicas(name))
        some = self._chance.sample(partitions, self._chance.randint(1, len(partitions)))
        return {index: self._replicas(3 if name == self._fixed else None) for index in some}

    def _replicas(self, count: int | None = None) -> list[int]:
        return self._chance.sample(sorted(self._rig.brokers), count or self._chance.randint(2, 3))

    def _expect(self, name: str, moves: dict[int, list[int]], *, is_confirmed: bool) -> None:
        for index, replicas in moves.items():
            self.moved.add(f"{name}-{index}")
            if is_confirmed:
                asked = self._asked.get((name, index))
                self.placed[name, index] = [replicas, *([asked] if asked else [])]
            else:
                before = self.placed.get((name, index)) or [self._rig.replicas(name)[index]]
                self.placed[name, index] = [*before, replicas]

    def _ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Ask the controller. Raises OSError, UnansweredError."""
        controller = self._rig.controller()
        if controller is None:
            raise UnansweredError("no controller")
        with WireClient(self._rig.brokers[controller].bootstrap, timeout_s=2 * _TIMEOUT_MS / 1000) as client:
            return client.ask(key, version, fields)

    # Invariants

    def contradictions(self) -> list[str]:
        """Return confirmed operations whose result is not in ZooKeeper; forget unconfirmed ones."""
        found = []
        self._asked.clear()
        existing = set(self._rig.topics())
        found += [
            f"{name} was created, but does not exist"
            for name, sure in self.topics.items()
            if sure and name not in existing
        ]
        found += [f"{name} was deleted, but exists" for name in self.deleted & existing]
        self.topics = {name: True for name in self.topics if name in existing}
        for (name, index), allowed in list(self.placed.items()):
            replicas = self._rig.replicas(name).get(index) if name in existing else None
            if replicas is None:
                del self.placed[name, index]
            elif replicas not in allowed:
                found.append(f"{name}-{index} is on {replicas}, and should be on {' or '.join(map(str, allowed))}")
            else:
                self.placed[name, index] = [replicas]
        return found


def _confirm(results: list[dict[str, Any]]) -> None:
    """Raise UnansweredError unless all succeeded."""
    errors = [result["error_code"] for result in results if result["error_code"] != "none"]
    if errors:
        raise UnansweredError(", ".join(errors))
