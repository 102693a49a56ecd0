"""`headrace pipeline query`: the tables as readers see them, also those of jobs that it does not know."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.pipeline.spec import shape
from headrace.pipeline.spec.deployment import Deployment
from headrace.pipeline.spec.jobs import Additive, Job, Topic
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Query = Callable[[str], tuple[int, str, str]]

WORDS = Additive(table="my_words", keys=("word",), sums=("times",))
WORD_COUNT = Job(name="my_words", version=1, source=Topic(), outputs=(WORDS,), function=lambda rows, _: rows)


@pytest.fixture
def lake(spark: "SparkSession", tmp_path: Path) -> str:
    """A lake with an additive table of two batches, and the shape of its job, which is not installed."""
    from headrace.pipeline.engine.files import Files
    from headrace.pipeline.engine.tables import additive
    from headrace.pipeline.engine.tables.lake import Lake

    deployment = Deployment.default(lake=str(tmp_path / "lake"))
    tables = Lake(spark, deployment.lake)
    for batch in range(2):
        rows = frame(spark, [{"word": "a", "times": 2}], "word: string, times: bigint")
        additive.append(tables, WORDS, rows, writer="my_words-1", batch=batch, metadata={})
    text = json.dumps(shape.shape_of(WORD_COUNT).as_json())
    Files(spark).write(f"{deployment.checkpoints}/shapes/my_words-1.json", text)
    return deployment.lake


@pytest.fixture
def query(commands_share_spark: None, lake: str) -> "Query":
    """Run a query in the session of the tests, and return exit code, output and errors."""

    def run(sql: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["pipeline", "query", sql, "--lake", lake])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stdout, result.stderr

    return run


def test_totals_of_a_job_that_has_run_need_no_definition(query: "Query") -> None:
    assert query("SELECT word, times FROM MY_WORDS") == (0, "word\ttimes\na\t4\n", "")
    assert "\tmy_words\t" in query("SHOW TABLES")[1]


def test_a_wrong_query_is_an_error_of_a_line(query: "Query", lake: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert query("SELECT * FROM words") == (
        1,
        "",
        f"Error: The table or view `words` cannot be found.\nTables in {lake}: my_words.\n",
    )
    for sql, message in (("SELEC 1", "Syntax error at or near 'SELEC'"), ("SELECT 1/0", "Division by zero")):
        status, _, error = query(sql)
        assert status == 1
        assert message in error
        assert len(error.splitlines()) == 1
    # Spark's Python part would log stack traces as JSON.
    assert "Traceback" not in "".join(capfd.readouterr())
