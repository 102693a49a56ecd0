"""Measure how long partitions are unavailable after clean stops and crashes of Headrace and Kafka brokers.

A prober per partition writes one record after another with acks=all. A partition was unavailable for the longest time
between two acknowledgements. Idempotent and transactional producers run meanwhile: no record of theirs may fail.
"""

import threading
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from headrace.clock import now_ms
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.cluster.conftest import metadata
from tests.cluster.proofs.coordinator_load import Pauses
from tests.cluster.proofs.kills import REPLICATED, TOPIC, rotated, verify
from tests.cluster.proofs.load import Load
from tests.cluster.proofs.rig import SESSION_TIMEOUT_MS, Rig, Say
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

_BROKERS: Final = (1, 2, 3)
_PROBED: Final = "probed"
_PRODUCE_VERSION: Final = 9
_PROBE_S: Final = 0.005
"""The time between an acknowledgement and the next record."""
_RETRY_S: Final = 0.02
_CLEAN_LIMIT_S: Final = 1.0
_CRASH_LIMIT_S: Final = SESSION_TIMEOUT_MS / 1000 + 1
_SETTINGS: Final = {
    **REPLICATED,
    # Leaders move only when a broker stops, and when the proof asks for it.
    "auto.leader.rebalance.enable": "false",
}


class Plan(NamedTuple):
    stops: int
    """Number of clean stops, and of crashes, of every broker."""
    seed: int
    partitions: int = 6
    rate: float = 20.0
    """Records per second of each producer beside the probers."""
    is_limited: bool = True
    """Raise AssertionError if partitions of Headrace are unavailable for too long."""


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if a record failed or was lost, or an outage was too long."""
    figures: dict[str, Any] = {"seed": plan.seed, "partitions": plan.partitions}
    late: list[str] = []
    for kind, brokers in (("Headrace", {"headraces": _BROKERS}), ("Kafka", {"kafkas": _BROKERS})):
        with Rig(base / kind, settings=_SETTINGS, **brokers) as rig:
            say(f"three {kind} brokers")
            clean, crashed, verified = _measure(plan, rig, say)
        for name, outages, limit in (("clean stops", clean, _CLEAN_LIMIT_S), ("crashes", crashed, _CRASH_LIMIT_S)):
            figures[f"{kind}, {name}"] = plan.stops * len(_BROKERS)
            figures[f"{kind}, longest outage of {name} (ms)"] = round(1000 * max(outages))
            figures[f"{kind}, median of {name} (ms)"] = round(1000 * median(outages))
            if kind == "Headrace":
                late += [f"{outage:.2f} s after one of the {name}" for outage in outages if outage >= limit]
        figures |= {f"{kind}, {name}": verified[name] for name in ("records acknowledged", "lost", "duplicated")}
    if plan.is_limited:
        assert not late, f"{figures}; unavailable for too long: " + ", ".join(late)
    return figures


def _measure(plan: Plan, rig: Rig, say: Say) -> tuple[list[float], list[float], dict[str, Any]]:
    """Return the outages of every partition after clean stops and crashes, in seconds, and figures of the load."""
    assignment = [rotated(list(_BROKERS), index) for index in range(plan.partitions)]
    for topic in (TOPIC, _PROBED):
        rig.create(topic, assignment, min_insync_replicas=2)
    probers = [
        _Prober([broker.bootstrap for broker in rig.brokers.values()], index) for index in range(plan.partitions)
    ]
    load = Load(rig.bootstrap, TOPIC, plan.partitions, transactional=1, rate=plan.rate, seed=plan.seed)
    outages: dict[bool, list[float]] = {True: [], False: []}
    try:
        with load:
            for prober in probers:
                prober.start()
            load.progress()
            for is_clean in (True, False):
                for _ in range(plan.stops):
                    for broker in _BROKERS:
                        found = _stop(rig, broker, probers, is_clean=is_clean)
                        outages[is_clean] += found
                        load.check()
                        say(
                            f"{'clean stop' if is_clean else 'crash'} of broker {broker}: unavailable for "
                            + ", ".join(f"{1000 * outage:.0f}" for outage in found)
                            + " ms"
                        )
            load.progress()
    finally:
        for prober in probers:
            prober.end()
    rig.wait_for_sync()
    return outages[True], outages[False], verify(rig, TOPIC, plan.partitions, load)


def _stop(rig: Rig, broker: int, probers: Sequence["_Prober"], *, is_clean: bool) -> list[float]:
    """Stop a broker, start it again, and return the outages of all partitions until they are led again."""
    rig.wait_for_sync()
    rig.elect_preferred_leaders()
    wait_for(
        lambda: all(state.leader == rig.replicas(_PROBED)[index][0] for index, state in rig.states(_PROBED).items()),
        "preferred leaders",
    )
    _wait_for_probes(probers)
    for prober in probers:
        prober.pauses.reset()
    if is_clean:
        rig.brokers[broker].sigterm()
    else:
        rig.brokers[broker].sigkill()
        wait_for(lambda: broker not in rig.live_brokers(), f"broker {broker} counts as dead", timeout_s=60)
    _wait_for_probes(probers)
    rig.restart(broker)
    rig.wait_for_sync()
    _wait_for_probes(probers)
    return [prober.pauses.longest_s for prober in probers]


def _wait_for_probes(probers: Sequence["_Prober"]) -> None:
    """Wait until every prober has sent and received a record."""
    before = [prober.pauses.successes for prober in probers]
    wait_for(
        lambda: all(prober.pauses.successes > count + 1 for prober, count in zip(probers, before, strict=True)),
        "records in all partitions",
        timeout_s=120,
    )


class _Prober(threading.Thread):
    def __init__(self, bootstraps: Sequence[str], partition: int) -> None:
        super().__init__(name=f"prober-{partition}")
        self.pauses = Pauses()
        self._bootstraps = cycle(bootstraps)
        self._partition = partition
        self._client: WireClient | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                is_written = self._write()
            except OSError:
                is_written = False
            if is_written:
                self.pauses.success()
            else:
                self._disconnect()
            self._ending.wait(_PROBE_S if is_written else _RETRY_S)
        self._disconnect()

    def end(self) -> None:
        self._ending.set()
        if self.is_alive():
            self.join()

    def _write(self) -> bool:
        """Write a record with acks=all, and return True if it was acknowledged. Raises OSError."""
        if self._client is None:
            self._client = self._connect()
        if self._client is None:
            return False
        data = {"index": self._partition, "records": build_batch([RecordData(None, b"probe", now_ms())])}
        fields = {"acks": -1, "timeout": 30_000, "topic_data": [{"name": _PROBED, "partition_data": [data]}]}
        answer = self._client.ask(ApiKey.PRODUCE, _PRODUCE_VERSION, fields)
        (result,) = answer["responses"][0]["partition_responses"]
        return bool(result["error_code"] == "none")

    def _connect(self) -> WireClient | None:
        """Return a connection to the leader that the next broker names; None if it names none. Raises OSError."""
        answer = metadata(next(self._bootstraps), _PROBED)
        (topic,) = answer["topics"]
        addresses = {broker["node_id"]: f"{broker['host']}:{broker['port']}" for broker in answer["brokers"]}
        for partition in topic["partitions"]:
            if partition["partition_index"] == self._partition and partition["leader_id"] in addresses:
                return WireClient(addresses[partition["leader_id"]])
        return None

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
