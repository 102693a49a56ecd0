"""Choose if Spark compiles or interprets the plans of a batch.

Before it can run compiled code, Spark writes the source of every stage of every batch, and looks up or compiles its
class. For a few rows, that costs far more than to interpret the plan.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED: Final = 5_000
"""Up to this many rows, a batch is interpreted."""
_STAGES: Final = "spark.sql.codegen.wholeStage"
_EXPRESSIONS: Final = "spark.sql.codegen.factoryMode"


class Compiling:
    """Sets how the queries of a session are run. The settings that the session has are those for compiled code."""

    def __init__(self) -> None:
        self._compiled: tuple[str, str] | None = None
        """The session's own settings, while its queries are interpreted."""

    def choose(self, session: "SparkSession", count: int | None) -> None:
        """Let the session interpret a batch of `count` rows, at most, if these are few. None if it is not known."""
        few = count is not None and count <= INTERPRETED
        conf = session.conf
        if few and self._compiled is None:
            self._compiled = (str(conf.get(_STAGES)), str(conf.get(_EXPRESSIONS, "FALLBACK")))
            conf.set(_STAGES, "false")
            conf.set(_EXPRESSIONS, "NO_CODEGEN")
        elif not few and self._compiled is not None:
            stages, expressions = self._compiled
            self._compiled = None
            conf.set(_STAGES, stages)
            conf.set(_EXPRESSIONS, expressions)
