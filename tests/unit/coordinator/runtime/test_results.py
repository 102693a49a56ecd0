"""The runtime with a minimal machine: one counter per name."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headrace.clock import SYSTEM, Clock
from headrace.coordinator.runtime.results import CancelTimer, Result, ScheduleTimer, Then, Write
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.shards import LedShard
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.compression import Codec
from tests.unit.coordinator.fake_loop import FakeLoop
from tests.unit.coordinator.memory_log import MemoryLog


class Counters:
    """Replayed values by name."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.failed: list[str] = []
        self.when_fired: Result[None] = Result(None)

    def __len__(self) -> int:
        return len(self.values)

    def encode(self, key: str, value: int) -> tuple[bytes, bytes]:
        return key.encode(), b"%d" % value

    def replay(self, key: str, value: int, now_ms: int) -> None:
        self.values[key] = value

    def replay_bytes(self, key: bytes, value: bytes | None, offset: int, *, now_ms: int, producer_id: int) -> bool:
        self.replay(key.decode(), int(value or 0), now_ms)
        return True

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        pass

    def loaded(self, now_ms: int) -> Iterator[tuple[str, list[object]]]:
        for name, value in self.values.items():
            yield name, [("loaded", value)]

    def unloaded(self, error: ErrorCode, now_ms: int) -> Iterator[tuple[str, list[object]]]:
        return iter(())

    def timer_fired(self, name: str, timer: str, now_ms: int) -> Result[None]:
        return self.when_fired

    def append_failed(self, name: str) -> None:
        self.failed.append(name)


class World:
    def __init__(self, log: MemoryLog | None = None, clock: Clock = SYSTEM) -> None:
        self.loop = FakeLoop()
        self.log = log or MemoryLog()
        self.performed: list[Any] = []
        self.performed_at_ms: list[int] = []
        self.runtime = Runtime(
            "topic",
            1,
            Counters,
            codec=Codec.NONE,
            loop=self.loop.as_loop(),
            clock=clock,
            perform=self._perform,
        )
        self.runtime.elected(0, self.log)
        self.loop.advance(0)

    def _perform(self, _: object, name: str, effect: object, at_ms: int) -> None:
        self.performed.append((name, effect))
        self.performed_at_ms.append(at_ms)

    @property
    def shard(self) -> LedShard[Counters]:
        return self.runtime.shards.of("n")

    def carry_out(self, result: Result[Any]) -> Any:
        return self.runtime.carry_out(self.shard, "n", result)


@pytest.fixture
def world() -> World:
    return World()


def test_effects_and_the_answer_follow_the_replay(world: World) -> None:
    seen = Then(lambda _now_ms: [("seen", dict(world.shard.state.values))])
    assert world.carry_out(Result("answer", [("n", 5)], [seen])) == "answer"
    assert world.performed == [("n", ("seen", {"n": 5}))]


def test_effects_of_an_effect_precede_the_next_effect(world: World) -> None:
    world.carry_out(Result(None, effects=[Then(lambda _: ["a", Then(lambda _: ["b"])]), "c"]))
    assert [effect for _, effect in world.performed] == ["a", "b", "c"]


def test_all_effects_of_a_result_have_the_same_time() -> None:
    ticks = count(1)
    world = World(clock=SYSTEM._replace(wall_ms=lambda: next(ticks)))
    world.carry_out(Result(None, effects=["a", Then(lambda _: ["b"]), "c"]))
    assert len(set(world.performed_at_ms)) == 1


def test_a_result_that_cannot_be_written_has_no_effects(world: World) -> None:
    world.log.error = KafkaError(ErrorCode.not_enough_replicas)
    with pytest.raises(KafkaError) as raised:
        world.carry_out(Result(None, [("n", 5)], ["effect"]))
    assert raised.value.code is ErrorCode.coordinator_not_available
    assert (world.performed, world.shard.state.values, world.shard.state.failed) == ([], {}, ["n"])


def test_an_error_is_raised_after_the_effects(world: World) -> None:
    with pytest.raises(KafkaError):
        world.carry_out(Result(None, effects=["effect"], error=KafkaError(ErrorCode.fenced_instance_id)))
    assert world.performed == [("n", "effect")]


def test_the_effects_of_a_write_depend_on_its_outcome(world: World) -> None:
    write = Write([("n", 5)], lambda code, _now_ms: [code])
    world.carry_out(Result(None, effects=[write]))
    world.log.error = KafkaError(ErrorCode.request_timed_out)
    world.carry_out(Result(None, effects=[write]))
    assert world.performed == [("n", ErrorCode.none), ("n", ErrorCode.coordinator_not_available)]
    assert world.shard.state.values == {}


def test_a_cancelled_timer_does_not_fire(world: World) -> None:
    world.shard.state.when_fired = Result(None, effects=["fired"])
    world.carry_out(Result(None, effects=[ScheduleTimer("late", 1000), CancelTimer("late")]))
    world.loop.advance(2)
    assert world.performed == []


def test_loading_performs_effects(world: World) -> None:
    world.carry_out(Result(None, [("n", 5)]))
    assert World(world.log).performed == [("n", ("loaded", 5))]
