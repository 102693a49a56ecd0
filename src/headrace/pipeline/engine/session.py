"""The Spark session of a deployment, with settings from the user, the profile and spark-submit."""

import os
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline import jars
from headrace.pipeline.engine.java import java_class, leave_working_directory, remember, silence_py4j
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import profiles
from headrace.pipeline.spec.deployment import Deployment
from headrace.pipeline.spec.secret_values import Options, Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python process that it starts."""
_OVERRIDES: Final = "HEADRACE_SPARK_CONF"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_CLASS_PATH: Final = "spark.driver.extraClassPath"
_LOGGERS_OF_ERRORS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""These print every SQL error to standard error, as JSON with stack traces, before it is raised."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that stop a driver in order."""
_OF_RESULTS: Final = ("spark.sql.", "spark.databricks.")


def profile(master: str) -> dict[str, str]:
    """Return the settings that a master implies: those of a laptop or of a server. Raises PipelineError."""
    return profiles.settings(profiles.profile_of(master))


def settings(
    deployment: Deployment,
    *,
    master: str | None = None,
    few_rows: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the settings of a deployment's session. Printing them hides secrets.

    The master is `master`, else the deployment's, else local[*]. With `few_rows`, the driver's Java starts faster,
    but takes longer for each row. Under spark-submit, master, memory, hosts and jars are those of its command line.
    Only settings on which results or secrets depend, and the deployment's SQL settings and secrets, are added.
    `HEADRACE_SPARK_CONF` (`key=value`, separated by semicolons) overrides everything.

    Raises PipelineError for an invalid master, for `master` under spark-submit, for an unreadable secret, and if
    HEADRACE_SPARK_JARS has no jars.
    """
    chosen = {
        name: value.read(f"[spark] {name}") if isinstance(value, Secret) else value
        for name, value in deployment.spark.settings.items()
    }
    # Spark always creates the warehouse directory, by default in the working directory.
    fixed = {**profiles.fixed(), "spark.sql.warehouse.dir": f"{deployment.lake}/_warehouse"}
    if _SUBMITTED in environ:
        if master is not None:
            raise PipelineError(
                f"spark-submit has already chosen the master: pass --master {master} to spark-submit, not to headrace"
            )
        given = deployment.spark.settings
        # The command line contains no secrets.
        added = {name for name in chosen if name.startswith(_OF_RESULTS) or isinstance(given[name], Secret)}
        found = Options({**fixed, **{name: chosen[name] for name in added}})
    else:
        where = master or deployment.spark.master or profiles.DEFAULT_MASTER
        implied = _with_java_options(profile(where), few_rows=few_rows)
        found = Options({**implied, **_with_jars(chosen, environ, where), **fixed, "spark.master": where})
    for setting in filter(None, environ.get(_OVERRIDES, "").split(";")):
        name, _, value = setting.partition("=")
        found[name.strip()] = value.strip()
    return found


def build(
    deployment: Deployment, *, master: str | None = None, name: str = "headrace", few_rows: bool = False
) -> "SparkSession":
    """Return the session of a deployment. Raises PipelineError as `settings` does, and if Spark does not start."""
    found = settings(deployment, master=master, few_rows=few_rows)
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    from headrace.pipeline.engine.monitoring import failures

    for logger in _LOGGERS_OF_ERRORS:
        PySparkLogger.getLogger(logger).disabled = True
    builder = SparkSession.builder.appName(name)
    for key, value in found.items():
        builder = builder.config(key, value)
    silence_py4j()
    try:
        with failures.explained(), _signals_only_here():
            spark = builder.getOrCreate()
    except PipelineError as error:
        where = found.get("spark.master", "the master of spark-submit")
        raise PipelineError(f"Spark did not start on {where}: {error} (see Spark's messages)") from error
    # The first thread that compiles creates Spark's cache of compiled code, with its own settings. Spark's own threads
    # have none, so create the cache here.
    getattr(java_class(spark, "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator$"), "MODULE$")
    leave_working_directory(spark)
    remember(spark)
    return spark


@contextmanager
def _signals_only_here() -> Iterator[None]:
    """Let only this process handle signals: Java would end in mid-batch, and PySpark's handler calls it.

    A terminal, `timeout` and service managers send signals to all processes. PySpark's handler of Ctrl-C calls Java,
    which fails during another call.
    """
    install, here = signal.signal, os.getpid()

    def others(number: int, action: Any) -> Any:
        if os.getpid() != here:
            # PySpark has forked to start Java, which leaves ignored signals ignored.
            return [install(each, signal.SIG_IGN) for each in STOP_SIGNALS]
        return signal.getsignal(number) if number == signal.SIGINT else install(number, action)

    setattr(signal, "signal", others)  # noqa: B010 (mypy)
    try:
        yield
    finally:
        setattr(signal, "signal", install)  # noqa: B010 (mypy)


def stop(spark: "SparkSession") -> None:
    """Stop Spark, even if its Java process has already ended."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


def _with_java_options(given: Mapping[str, str], *, few_rows: bool) -> dict[str, str]:
    """Add Java options for the class archive, if it exists, and for few rows."""
    options = (given[_JAVA_OPTIONS], jars.java_options(), profiles.FOR_FEW_ROWS if few_rows else "")
    return {**given, _JAVA_OPTIONS: " ".join(filter(None, options))}


def _with_jars(chosen: Mapping[str, str], environ: Mapping[str, str], master: str) -> dict[str, str]:
    """Add the connector's jars to the user's, such as those for s3a://.

    With a local master, put them on the driver's class path, because Java's class archive covers only that.
    """
    own = jars.spark_settings(environ)
    separator = ","
    if profiles.profile_of(master) == "laptop" and "spark.jars" in own:
        own, separator = {_CLASS_PATH: own["spark.jars"].replace(",", os.pathsep)}, os.pathsep
    return {**chosen, **{name: separator.join(filter(None, (jar, chosen.get(name)))) for name, jar in own.items()}}
