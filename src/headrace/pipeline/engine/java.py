"""Classes of the driver's Java process.

py4j resolves `jvm.org.apache.x.Y` part by part, and searches every jar for each package. `java_class` passes the full
name at once, which avoids the search.
"""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OFTEN: Final = ("org.apache.spark.sql.functions", "functions", "PythonUtils")
"""Classes that PySpark looks up for every expression."""


def java_class(spark: "SparkSession", name: str) -> Any:
    return getattr(spark._jvm, name)


def has_ended(error: Exception) -> bool:
    """Return True if an error occurred because Spark's Java process has ended.

    py4j does not always raise Py4JNetworkError: if Java ends during a call, it raises a plain Py4JError, and often
    ConnectionRefusedError in later calls.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark import SparkContext

    if isinstance(error, Py4JNetworkError):
        return True
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return False
    try:
        gateway.jvm.System.currentTimeMillis()
    except (Py4JError, OSError):
        return True
    return False


def has_stopped(spark: "SparkSession") -> bool:
    """Return True if Spark has stopped by itself. Raises Py4JError or OSError if its Java process has ended."""
    context: Any = spark.sparkContext._jsc
    return bool(context.sc().isStopped())


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
    # py4j itself uses this path to check the type of an object.
    if "py4j" not in vars(jvm):
        types = _Remembered(java_class(spark, "py4j.reflection.TypeUtil"))
        jvm.py4j = SimpleNamespace(reflection=SimpleNamespace(TypeUtil=types))


def leave_working_directory(spark: "SparkSession") -> None:
    """Make Spark create its artifact directory among its temporary files.

    Spark 4.0 creates `./artifacts` and never removes it. If the working directory is not writable, every query fails.
    """
    utils = getattr(java_class(spark, "org.apache.spark.util.Utils$"), "MODULE$")
    directory = utils.createTempDir(getattr(utils, "createTempDir$default$1")(), "artifacts").toPath()
    manager = java_class(spark, "java.lang.Class").forName("org.apache.spark.sql.artifact.ArtifactManager$")
    # A lazy value: the second field marks it as initialized.
    for name, value in (("artifactRootDirectory", directory), ("bitmap$0", True)):
        field = manager.getDeclaredField(name)
        field.setAccessible(True)
        field.set(None, value)


def silence_py4j() -> None:
    """Keep py4j from logging stack traces before it raises errors, even through the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    root.removeFilter(_is_not_of_py4j)
    root.addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def silence(spark: "SparkSession", logger: str) -> None:
    """Turn off a logger of the Java process."""
    off = java_class(spark, "org.apache.logging.log4j.Level").OFF
    java_class(spark, "org.apache.logging.log4j.core.config.Configurator").setLevel(logger, off)
