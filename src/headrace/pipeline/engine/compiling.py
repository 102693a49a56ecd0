"""Choose whether Spark compiles or interprets the plans of a batch.

For compiled code, Spark generates the source of every stage of a batch, and compiles it unless the class is cached. For
a few rows, this takes far longer than interpreting the plan.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERPRETED: Final = 10_000
"""Maximum number of rows in an interpreted batch."""
_STAGES: Final = "spark.sql.codegen.wholeStage"
_EXPRESSIONS: Final = "spark.sql.codegen.factoryMode"


def interpret(session: "SparkSession") -> None:
    """Interpret all plans of the session from now on."""
    session.conf.set(_STAGES, "false")
    session.conf.set(_EXPRESSIONS, "NO_CODEGEN")


class Compiling:
    """Switches a session between compiled and interpreted plans. The session begins with compiled plans."""

    def __init__(self) -> None:
        self._compiled: tuple[str, str] | None = None
        """The session's own settings, while its queries are interpreted."""

    def choose(self, session: "SparkSession", count: int | None) -> None:
        """Interpret the batch's plans if it has at most 10,000 rows; otherwise, or if `count` is None, compile them."""
        few = count is not None and count <= INTERPRETED
        conf = session.conf
        if few and self._compiled is None:
            self._compiled = (str(conf.get(_STAGES)), str(conf.get(_EXPRESSIONS, "FALLBACK")))
            interpret(session)
        elif not few and self._compiled is not None:
            stages, expressions = self._compiled
            self._compiled = None
            conf.set(_STAGES, stages)
            conf.set(_EXPRESSIONS, expressions)
