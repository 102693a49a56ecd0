"""Optional packages, and the commands that install them.

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
    """Return the command that installs the packages of an extra."""
    return f"pip install 'headrace[{extra}]'"


def missing(error: ImportError) -> tuple[str, str] | None:
    """Return the package that `error` could not import and the command that installs it; None for other errors."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    found = _EXTRAS.get(error.name.partition(".")[0])
    return None if found is None else (found[0], install(found[1]))
