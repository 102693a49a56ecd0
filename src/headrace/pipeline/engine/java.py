"""Classes of the driver's Java process.

py4j resolves `jvm.org.apache.x.Y` part by part, and searches every jar for each package. A full name is found at once.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OFTEN: Final = ("org.apache.spark.sql.functions", "PythonUtils")
"""Classes that PySpark looks up for every expression."""


def java_class(spark: "SparkSession", name: str) -> Any:
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
    """Cache the classes that PySpark looks up most often.

    To resolve a short name, Java searches every jar for the class in each imported package.
    """
    jvm: Any = spark._jvm
    for name in _OFTEN:
        if name not in vars(jvm):
            setattr(jvm, name, _Remembered(getattr(jvm, name)))
