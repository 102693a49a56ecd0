"""Keys of changelogs: different rows have different keys, and ordinary values are unchanged."""

from typing import TYPE_CHECKING

from headrace.pipeline.spec.jobs import Additive
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def keys(spark: "SparkSession", *rows: tuple[str | None, ...]) -> list[str]:
    from headrace.pipeline.engine.exactly_once import changelog

    names = [f"k{at}" for at in range(len(rows[0]))]
    values = [dict(zip(names, row, strict=True)) for row in rows]
    stored = frame(spark, values, ", ".join(f"{name}: string" for name in names))
    output = Additive(table="t", keys=tuple(names), sums=())
    return [row.key for row in changelog.records(stored, "topic", output).collect()]


def test_rows_with_several_keys_have_different_keys(spark: "SparkSession") -> None:
    written = {
        ("a b", "c"): '"a b" c',
        ("a", "b c"): 'a "b c"',
        (None, "x"): r"\N x",
        ("x", None): r"x \N",
        ("", "x"): " x",
        (r"\N", "x"): r'"\N" x',
        ('"a', 'b"'): '"""a" b"',
        ('say "a"', "b"): '"say ""a""" b',
        ("2015-05-17T10:00:00Z", r"/a\b?c='d\""): r"2015-05-17T10:00:00Z /a\b?c='d\"",
    }
    assert keys(spark, *written) == list(written.values())


def test_a_single_key_may_contain_spaces(spark: "SparkSession") -> None:
    written = {("a b",): "a b", (None,): r"\N", ("",): "", (r"\N",): r'"\N"', (r'"\N"',): r'"""\N"""'}
    assert keys(spark, *written) == list(written.values())
