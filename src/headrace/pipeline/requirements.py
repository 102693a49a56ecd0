"""Check Spark's requirements before anything starts, because Spark's own errors are hard to understand."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from headrace.extras import install
from headrace.pipeline.errors import PipelineError

_OLDEST_JAVA: Final = 17
_NEWEST_JAVA: Final = 22
"""Since Java 23, `Subject.getSubject` throws an exception, but Spark 4.0's Hadoop client calls it."""
_GET_JAVA: Final = (
    "Install a Java 17 runtime ('apt-get install openjdk-17-jre-headless' on Debian or Ubuntu, "
    "'brew install openjdk@17' on macOS). If several are installed, set JAVA_HOME to this one."
)


def check() -> None:
    """Raise `PipelineError` if pyspark, delta-spark or a supported Java is missing."""
    for module, package in (("pyspark", "pyspark"), ("delta", "delta-spark")):
        if importlib.util.find_spec(module) is None:
            raise PipelineError(f"{package} is not installed. Install it with: {install('pipeline')}")
    check_java()


def check_java() -> None:
    """Raise `PipelineError` unless Spark supports the `java` that pyspark will start."""
    java = _java()
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineError(f"{java} cannot be started ({error}). {_GET_JAVA}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is None:
        output = (answer.stderr or answer.stdout).strip()
        raise PipelineError(f"`{java} -version` printed no version: {output}. {_GET_JAVA}")
    if not _OLDEST_JAVA <= int(version[1]) <= _NEWEST_JAVA:
        raise PipelineError(
            f"{java} is Java {version[1]}, but Spark 4.0 needs Java {_OLDEST_JAVA} to {_NEWEST_JAVA}. {_GET_JAVA}"
        )


def _java() -> str:
    """Find Java as Spark's launcher does: in JAVA_HOME, then on PATH. Raises PipelineError."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise PipelineError(f"JAVA_HOME is {home}, but {java} does not exist. {_GET_JAVA}")
        return str(java)
    found = shutil.which("java")
    if found is None:
        raise PipelineError(f"Spark needs Java, but java is not on the PATH. {_GET_JAVA}")
    return found
