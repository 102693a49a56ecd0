"""Find Spark's connector jars: in the directory filled by `make setup`, or on Maven Central.

`jars.pom.xml` in this directory sets their versions.
"""

import os
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.pipeline.errors import PipelineError

JARS_VARIABLE: Final = "HEADRACE_SPARK_JARS"
_POM: Final = Path(__file__).with_name("jars.pom.xml")
_NS: Final = {"m": "http://maven.apache.org/POM/4.0.0"}


def maven_coordinates() -> tuple[str, ...]:
    """Return the direct dependencies in `jars.pom.xml` as `group:artifact:version`."""
    project = ET.parse(_POM).getroot()
    properties = {
        element.tag.rpartition("}")[2]: element.text or "" for element in project.iterfind("m:properties/*", _NS)
    }

    def resolved(dependency: ET.Element, name: str) -> str:
        text = dependency.findtext(f"m:{name}", "", _NS)
        for key, value in properties.items():
            text = text.replace(f"${{{key}}}", value)
        return text

    return tuple(
        ":".join(resolved(dependency, name) for name in ("groupId", "artifactId", "version"))
        for dependency in project.iterfind("m:dependencies/m:dependency", _NS)
    )


def spark_settings(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the Spark settings for the jars. Raises `PipelineError` if HEADRACE_SPARK_JARS has no jars."""
    named = environ.get(JARS_VARIABLE)
    directory = Path(named) if named else _project_jars()
    jars = sorted(directory.glob("*.jar")) if directory else []
    if named and not jars:
        raise PipelineError(
            f"{JARS_VARIABLE} is {named}, which contains no jars. Unset it to let Spark download them, "
            f"or fill the directory: mvn -f {_POM} dependency:copy-dependencies -DoutputDirectory={named}"
        )
    if jars:
        return {"spark.jars": ",".join(str(jar.resolve()) for jar in jars)}
    return {"spark.jars.packages": ",".join(maven_coordinates())}


def classes() -> Path | None:
    """Return the path of the class data (CDS) archive that `make setup` creates; None for an installed package."""
    directory = _project_jars()
    return directory.with_suffix(".jsa") if directory else None


def java_options() -> str:
    """Return the Java options with which a driver uses the archive of `classes`; empty if it does not exist.

    Spark loads 16,000 classes. With an archive, a driver uses a third less CPU time until it has written its first
    batches. Java ignores an archive of other jars or of another Java version.
    """
    archive = classes()
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off" if archive and archive.is_file() else ""


def _project_jars() -> Path | None:
    """Return `.build/jars/spark` of the checkout; None for an installed package."""
    root = Path(__file__).resolve().parents[3]
    return root / ".build" / "jars" / "spark" if (root / "pyproject.toml").is_file() else None
