"""Figures without a bound: a row per figure, a column per broker."""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Protocol

from bench.brokers import Broker, Headrace, Kafka


class Named(Protocol):
    """A broker or a cluster."""

    name: str


class Figures(ABC):
    """A measurement with figures in `samples`, by row and broker. The table shows their medians."""

    def __init__(self, jars: Path, directory: Path, *, with_kafka: bool) -> None:
        self._makers: list[Callable[[], Broker]] = [lambda: Headrace(directory / "headrace")]
        if with_kafka:
            self._makers.append(lambda: Kafka(directory / "kafka", jars))
        self.samples: dict[str, dict[str, list[float]]] = {}

    @abstractmethod
    def measure(self) -> None:
        """Measure, and fill `samples`. Raises RuntimeError or OSError if a broker fails."""

    def note(self, row: str, broker: Named, figure: float) -> None:
        """Record and print a figure."""
        self.samples.setdefault(row, {}).setdefault(broker.name, []).append(figure)
        sys.stderr.write(f"{broker.name}: {row}: {figure:,.2f}\n")

    def print_table(self) -> None:
        names = list(dict.fromkeys(name for figures in self.samples.values() for name in figures))
        width = max(map(len, self.samples), default=0) + 2
        sys.stdout.write(" " * width + "".join(f"{name:>12}" for name in names) + "\n")
        for row, figures in self.samples.items():
            cells = (f"{median(figures[name]):12,.2f}" if name in figures else " " * 12 for name in names)
            sys.stdout.write(f"{row:{width}}{''.join(cells)}\n")

    def print_json(self) -> None:
        json.dump(self.samples, sys.stdout, indent=2)
        sys.stdout.write("\n")
