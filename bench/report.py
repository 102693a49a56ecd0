"""Print the rows as a table, or return them for JSON."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.rows import Outcome, Row


def table(outcomes: Sequence[Outcome]) -> Table:
    shown = Table(title="Headrace and Apache Kafka 4.3.1", caption=machine(), title_justify="left", pad_edge=False)
    shown.add_column("")
    for heading in ("Headrace", "Kafka", "ratio", "bound"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for outcome in outcomes:
        verdict = {True: "[green]met[/]", False: "[bold red]missed[/]", None: ""}[outcome.is_met]
        shown.add_row(
            outcome.row.title,
            _figure(outcome.headrace, outcome.row.unit),
            "" if outcome.kafka is None else _figure(outcome.kafka, outcome.row.unit),
            "" if outcome.ratio is None else f"{outcome.ratio:.2f}",
            _bound(outcome.row),
            verdict,
        )
    return shown


def print_table(outcomes: Sequence[Outcome]) -> None:
    """Print the table to standard output, 120 columns wide if that is not a terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(table(outcomes))


def as_object(
    outcomes: Sequence[Outcome], headrace: Mapping[str, Sequence[float]], kafka: Mapping[str, Sequence[float]]
) -> dict[str, object]:
    """Return the object for `--json`: all rows with medians, ratios, verdicts and samples."""
    return {
        "machine": machine(),
        "rows": [
            {
                "key": outcome.row.key,
                "title": outcome.row.title.strip(),
                "unit": outcome.row.unit,
                "headrace": outcome.headrace,
                "kafka": outcome.kafka,
                "ratio": outcome.ratio,
                "floor": _bound(outcome.row) or None,
                "met": outcome.is_met,
                "samples": {"headrace": headrace.get(outcome.row.key, []), "kafka": kafka.get(outcome.row.key, [])},
            }
            for outcome in outcomes
        ],
    }


def machine() -> str:
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = models[0] if models else processor
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores ({processor}), {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _figure(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    if value >= 10_000:
        return f"{value / 1000:,.0f} K {unit}" if unit.endswith("/s") else f"{value:,.0f} {unit}"
    return f"{value:,.{max(digits, 3 if unit in ('ms', 's') and value < 1 else digits)}f} {unit}"


def _bound(row: Row) -> str:
    bounds = []
    if row.absolute is not None:
        bounds.append(f"<= {row.absolute:g} {row.unit}")
    if row.at_least is not None:
        bounds.append(f">= {row.at_least:g}")
    if row.at_most is not None:
        bounds.append(f"<= {row.at_most:g}")
    return ", ".join(bounds)
