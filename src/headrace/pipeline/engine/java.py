"""Classes of the driver's Java process.

py4j looks up `jvm.org.apache.x.Y` name by name, and asks every jar for each of the packages. The whole name at once is
found immediately.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: "SparkSession", name: str) -> Any:
    """Return the class with this full name."""
    return getattr(spark._jvm, name)


def to_list(spark: "SparkSession", sequence: Any) -> list[Any]:
    """Return the elements of a Scala collection."""
    return list(java_class(spark, "scala.jdk.javaapi.CollectionConverters").asJava(sequence))
