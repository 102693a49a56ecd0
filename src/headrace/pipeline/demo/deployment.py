"""The jobs of the demo, and how they are deployed. Reads no tables and connects to nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from headrace.pipeline.spec import registry
from headrace.pipeline.spec.deployment import Deployment
from headrace.pipeline.spec.jobs import Changelog, Job, Table

ACCESS_LOG: Final = "access-log"
"""The topic with the lines of an access log."""
JOBS: Final = (
    "raw",
    "events",
    "page_views",
    "visitors",
    "referrers",
    "sessions",
    "traffic",
    "status_codes",
    "top_pages",
    "crawlers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJobs:
    """The jobs by name, and their deployment. With a prefix, jobs and topics have it, and tables do not."""

    jobs: dict[str, Job]
    deployment: Deployment
    prefix: str

    @property
    def topic(self) -> str:
        """The topic that the lines are shipped to."""
        return self.prefix + ACCESS_LOG

    @property
    def changelogs(self) -> dict[str, str]:
        """The result topics of jobs, by job."""
        return {
            name: output.topic
            for name, job in self.jobs.items()
            for output in job.outputs
            if isinstance(output, Changelog)
        }


def demo_jobs(*, bootstrap: str, lake: str, prefix: str = "", overrides: Iterable[str] = ()) -> DemoJobs:
    """Return the jobs, for a cluster and a lake; `overrides` are values of `--set`. Raises PipelineError."""
    known = registry.find()
    found = {name: known.named(name) for name in JOBS}
    deployed = Deployment.default(bootstrap, lake).with_overrides(found, overrides)
    settings = {
        prefix + name: replace(
            deployed.settings(name), topic=None if isinstance(job.source, Table) else prefix + ACCESS_LOG
        )
        for name, job in found.items()
    }
    return DemoJobs(
        jobs={prefix + name: _prefixed(job, prefix) for name, job in found.items()},
        deployment=replace(deployed, jobs=settings),
        prefix=prefix,
    )


def _prefixed(job: Job, prefix: str) -> Job:
    outputs = tuple(
        replace(output, topic=prefix + output.topic) if isinstance(output, Changelog) else output
        for output in job.outputs
    )
    return replace(job, name=prefix + job.name, outputs=outputs)
