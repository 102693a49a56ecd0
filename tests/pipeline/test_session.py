"""The Spark session of the pipeline's commands."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_creates_nothing_in_the_working_directory(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.java import java_class

    spark.sql("SELECT 1").collect()
    manager: Any = getattr(java_class(spark, "org.apache.spark.sql.artifact.ArtifactManager$"), "MODULE$")
    directory = Path(manager.artifactRootDirectory().toString())
    assert directory.is_dir()
    assert not directory.is_relative_to(Path.cwd())
