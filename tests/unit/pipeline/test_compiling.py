"""Small batches are interpreted, and the session's own settings come back for large ones."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from headrace.pipeline.engine.compiling import INTERPRETED, Compiling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGES = "spark.sql.codegen.wholeStage"
EXPRESSIONS = "spark.sql.codegen.factoryMode"


class Conf(dict[str, str]):
    def set(self, name: str, value: str) -> None:
        self[name] = value


def after(*counts: int | None) -> Conf:
    """Return the settings after batches of these sizes."""
    conf, compiling = Conf({STAGES: "true", EXPRESSIONS: "FALLBACK"}), Compiling()
    for count in counts:
        compiling.choose(cast("SparkSession", SimpleNamespace(conf=conf)), count)
    return conf


def test_a_small_batch_is_interpreted() -> None:
    assert after(INTERPRETED) == {STAGES: "false", EXPRESSIONS: "NO_CODEGEN"}
    assert after(10**6, 1, 0) == {STAGES: "false", EXPRESSIONS: "NO_CODEGEN"}


def test_large_batches_and_those_of_unknown_size_are_compiled() -> None:
    for last in (INTERPRETED + 1, None):
        assert after(last) == after(1, 1, last) == {STAGES: "true", EXPRESSIONS: "FALLBACK"}
