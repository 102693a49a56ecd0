"""`python -m bench.connector BOOTSTRAP TOPIC`: read a topic with Spark's connector alone, and print how long it took.

Uses the batch sizes, columns and Spark settings of the pipeline's jobs, and discards the rows.
"""

import sys
import tempfile
import time

from headrace.pipeline.engine import session, sources
from headrace.pipeline.spec import client_settings
from headrace.pipeline.spec.deployment import DEFAULT_MAX_ROWS, Deployment


def main(bootstrap: str, topic: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        spark = session.build(Deployment.default(bootstrap, directory), name="connector")
        options = client_settings.plain(bootstrap).spark_options()
        records = sources.records(spark, options, [topic], {}, DEFAULT_MAX_ROWS)
        begin = time.monotonic()
        (
            records.writeStream.format("noop")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        sys.stdout.write(f"{time.monotonic() - begin}\n")
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
