"""Packages that only some commands need, and the command that installs them.

`pyproject.toml` has the same names under `project.optional-dependencies`.
"""

from typing import Final

_EXTRAS: Final = {
    "confluent_kafka": ("confluent-kafka", "cli"),
    "kafka": ("kafka-python", "cli"),
    "rich": ("rich", "cli"),
    "typer": ("typer", "cli"),
    "numpy": ("numpy", "compaction"),
    "kazoo": ("kazoo", "zookeeper"),
    "pyspark": ("pyspark", "pipeline"),
    "delta": ("delta-spark", "pipeline"),
}


def install(extra: str) -> str:
    """The command that brings the packages of an extra into this environment."""
    return f"pip install 'headrace[{extra}]'"


def missing(error: ImportError) -> tuple[str, str] | None:
    """The package that `error` is about and the command that installs it; None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    found = _EXTRAS.get(error.name.partition(".")[0])
    return None if found is None else (found[0], install(found[1]))
