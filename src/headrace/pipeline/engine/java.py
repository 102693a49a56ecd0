"""Classes of the driver's Java process.

py4j looks up `jvm.org.apache.x.Y` name by name, and asks every jar for each of the packages. The whole name at once is
found immediately.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OFTEN: Final = ("org.apache.spark.sql.functions", "PythonUtils")
"""Classes that PySpark looks up for every expression."""


def java_class(spark: "SparkSession", name: str) -> Any:
    """Return the class with this full name."""
    return getattr(spark._jvm, name)


def to_list(spark: "SparkSession", sequence: Any) -> list[Any]:
    """Return the elements of a Scala collection."""
    return list(java_class(spark, "scala.jdk.javaapi.CollectionConverters").asJava(sequence))


class _Remembered:
    """A Java class whose static methods are looked up once."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._java, name)
        setattr(self, name, found)
        return found


def remember(spark: "SparkSession") -> None:
    """Let PySpark find the classes that it needs most often without asking Java.

    To find one by its short name, Java looks for it in every package, and for each of these in every jar.
    """
    jvm: Any = spark._jvm
    for name in _OFTEN:
        if name not in vars(jvm):
            setattr(jvm, name, _Remembered(getattr(jvm, name)))
