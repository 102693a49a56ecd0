"""Archive the classes that Spark loads for jobs, so that Java need not load and verify them at every start.

Run by `make setup`. It runs jobs of every kind in a driver; when the driver exits, Java writes the archive. The archive
contains classes from the driver's class path: those of Spark, its Kafka connector and Delta.
"""

import os
import sys
from typing import Any, Final, cast

from pyspark import SparkContext

from headrace.pipeline import jars
from headrace.pipeline.engine import session
from headrace.pipeline.jobs import activity, crawlers
from headrace.pipeline.spec.profiles import DEFAULT_MASTER, FOR_FEW_ROWS
from headrace.testing.pipeline import Lake

_LINE: Final = '192.0.2.{} - - [17/May/2026:{:02}:05:03 +0000] "GET /{} HTTP/1.1" 200 512 "-" "-"'
_ENDS_S: Final = 300.0


def main() -> int:
    archive = jars.classes()
    if archive is None:
        print(
            "Run this in a checkout of Headrace: an installed package has no directory for the archive.",
            file=sys.stderr,
        )
        return 1
    unfinished = archive.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    name = "spark.driver.extraJavaOptions"
    archiving = f"{FOR_FEW_ROWS} -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds=off"
    os.environ["HEADRACE_SPARK_CONF"] = f"{name}={session.profile(DEFAULT_MASTER)[name]} {archiving}"
    with Lake() as lake:
        lines = [_LINE.format(number % 9, number % 24, number % 5) for number in range(100)]
        lake.run_once(activity.page_views, [*lines, "torn"])
        for job in (activity.sessions, activity.top_pages, crawlers.crawlers):
            lake.run_once(job)
        lake.spark.stop()
    java = cast("Any", SparkContext._gateway).proc
    java.stdin.close()
    java.wait(_ENDS_S)
    unfinished.replace(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
