"""Python asks Java once for the classes that it needs all the time."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from headrace.pipeline.engine.java import remember

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Asked:
    """Answers with another object for each name, and notes the names."""

    def __init__(self, names: list[str]) -> None:
        self.__dict__["names"] = names

    def __getattr__(self, name: str) -> Any:
        self.names.append(name)
        return Asked(self.names)


def test_classes_and_methods_are_looked_up_once() -> None:
    names: list[str] = []
    jvm = Asked(names)
    spark = cast("SparkSession", SimpleNamespace(_jvm=jvm))
    for _ in range(2):
        remember(spark)
        assert jvm.PythonUtils.toSeq is jvm.PythonUtils.toSeq
        assert jvm.py4j.reflection.TypeUtil.isInstanceOf is jvm.py4j.reflection.TypeUtil.isInstanceOf
    classes = {"PythonUtils", "functions", "org.apache.spark.sql.functions", "py4j.reflection.TypeUtil"}
    assert sorted(names) == sorted([*classes, "toSeq", "isInstanceOf"])
