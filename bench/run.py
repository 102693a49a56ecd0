"""Run all loads on both brokers, round by round."""

import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Self

from rich.console import Console

from bench import loads
from bench.brokers import Broker, Headrace, Kafka
from bench.clients import KafkaTools, ToolError
from bench.loads import FROM_START, Load, Loads, Sample, Scale

Samples = dict[str, list[float]]

_MEGABYTE = 1 << 20


class Run:
    """A measurement in its own directory under `base`. A context manager: the end stops the brokers and removes it."""

    def __init__(self, scale: Scale, jars: Path, base: Path | None, *, with_kafka: bool, only: str | None) -> None:
        self._scale = scale
        self._only = only
        self._kinds: list[Callable[[Path], Broker]] = [Headrace]
        if with_kafka:
            self._kinds.append(lambda directory: Kafka(directory, jars))
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=base))
        self._numbers = count(1)
        self._alive: list[Broker] = []
        self._loads = Loads(scale, KafkaTools(jars), self._directory)
        self._console = Console(stderr=True)
        self._begin = time.monotonic()
        self.samples: dict[str, Samples] = {"Headrace": defaultdict(list), "Kafka": defaultdict(list)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self._alive:
            broker.remove()
        shutil.rmtree(self._directory, ignore_errors=True)

    def measure(self) -> Mapping[str, Samples]:
        """Run all loads, and return the samples by broker and row."""
        if self._only is None:
            self._warm_page_cache()
            self._starts()
        self._rounds()
        if self._only is None:
            self._crashes()
        return self.samples

    def _starts(self) -> None:
        for kind in self._kinds:
            # Not counted: the first start reads files from disk and may compile byte code.
            with self._broker(kind) as broker:
                self._say(f"warming up: {broker.name}, start")
                broker.start()
        for number in range(1, self._scale.starts + 1):
            for kind in self._in_turn(number):
                with self._broker(kind) as broker:
                    self._measure(f"start {number} of {self._scale.starts}", broker, loads.start)
                    if number <= self._scale.first_loads:
                        self._measure(
                            f"first load {number} of {self._scale.first_loads}", broker, self._loads.produce_first
                        )

    def _rounds(self) -> None:
        known = self._loads.all()
        chosen = [load for load in known if self._only is None or self._only in load.title]
        if not chosen:
            titles = ", ".join(repr(load.title) for load in known)
            raise RuntimeError(f"No load has {self._only!r} in its title. The loads are {titles}.")
        brokers = []
        for kind in self._kinds:
            broker = self._new(kind)
            broker.start()
            brokers.append(broker)
        from_start = {broker.name: {key: list[float]() for key in FROM_START} for broker in brokers}
        for number in range(self._scale.rounds + 1):
            for load in chosen:
                # Not counted: in the first round, Java compiles hot code.
                label = f"round {number} of {self._scale.rounds}" if number else "warming up"
                for broker, sample in self._turns(f"{label}: {load.title}", load, brokers[:: 1 if number % 2 else -1]):
                    if number:
                        self._keep(broker, sample)
                    for key in FROM_START & sample.keys():
                        from_start[broker.name][key].append(sample[key])
        for broker in brokers:
            broker.check_alive()
            self.samples[broker.name]["load.memory"].append(broker.peak_resident_bytes() / 1e6)
            for key, samples in from_start[broker.name].items():
                if samples:
                    # These include the first round: all costs since the start count.
                    self.samples[broker.name][f"{key}-from-start"].append(mean(samples))
            broker.remove()
            self._alive.remove(broker)

    def _turns(self, label: str, load: Load, brokers: Sequence[Broker]) -> Iterator[tuple[Broker, Sample]]:
        """Run one round of `load` on the brokers in turn. Yield each broker's samples."""
        left = {broker: load.run(broker) for broker in brokers}
        while left:
            for broker, turns in list(left.items()):
                self._say(f"{label}: {broker.name}")
                try:
                    sample = next(turns, None)
                except (ToolError, TimeoutError):
                    broker.check_alive()
                    raise
                if sample is None:
                    del left[broker]
                else:
                    broker.check_alive()
                    yield broker, sample

    def _crashes(self) -> None:
        for number in range(1, self._scale.crashes + 1):
            for kind in self._in_turn(number):
                with self._broker(kind) as broker:
                    broker.start()
                    label = f"kill -9 under load {number} of {self._scale.crashes}"
                    self._measure(label, broker, lambda broker: loads.crash(broker, self._scale.crash_seconds))

    def _measure(self, label: str, broker: Broker, load: Callable[[Broker], Sample]) -> None:
        self._say(f"{label}: {broker.name}")
        self._keep(broker, load(broker))
        broker.check_alive()

    def _keep(self, broker: Broker, sample: Sample) -> None:
        for key, value in sample.items():
            self.samples[broker.name][key].append(value)

    def _in_turn(self, number: int) -> list[Callable[[Path], Broker]]:
        return self._kinds if number % 2 else self._kinds[::-1]

    def _new(self, kind: Callable[[Path], Broker]) -> Broker:
        broker = kind(self._directory / f"broker-{next(self._numbers)}")
        self._alive.append(broker)
        return broker

    @contextmanager
    def _broker(self, kind: Callable[[Path], Broker]) -> Iterator[Broker]:
        broker = self._new(kind)
        try:
            yield broker
        finally:
            broker.remove()
            self._alive.remove(broker)

    def _warm_page_cache(self) -> None:
        """Write and delete twice a round's bytes: on virtual machines the first access to memory is far slower."""
        self._say("warming up: page cache")
        block = bytes(_MEGABYTE)
        room = shutil.disk_usage(self._directory).free // 2
        with (self._directory / "warm-up").open("wb", buffering=0) as file:
            for _ in range(min(2 * self._scale.warm_up_bytes, room) // _MEGABYTE):
                file.write(block)
        (self._directory / "warm-up").unlink()

    def _say(self, label: str) -> None:
        elapsed = time.monotonic() - self._begin
        line = f"[{int(elapsed) // 60:2d}:{int(elapsed) % 60:02d}] {label}"
        if self._console.is_terminal:
            sys.stderr.write(f"\r\x1b[2K{line[: self._console.width - 1]}")
            sys.stderr.flush()
        else:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
