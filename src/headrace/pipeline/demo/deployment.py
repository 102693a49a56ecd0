"""The jobs of the demo, and how they are deployed. Reads no tables and connects to nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from headrace.pipeline.spec import registry
from headrace.pipeline.spec.deployment import Deployment
from headrace.pipeline.spec.jobs import Changelog, Job, Topic

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
    """The jobs by name, and their deployment, whose prefix is also that of the topic with the lines."""

    jobs: dict[str, Job]
    deployment: Deployment

    @property
    def topic(self) -> str:
        """The topic that the lines are shipped to."""
        return self.deployment.prefix + ACCESS_LOG

    @property
    def changelogs(self) -> dict[str, str]:
        """The result topics of jobs, by job."""
        return {
            name: self.deployment.prefix + output.topic
            for name, job in self.jobs.items()
            for output in job.outputs
            if isinstance(output, Changelog)
        }


def demo_jobs(*, bootstrap: str, lake: str, prefix: str = "", overrides: Iterable[str] = ()) -> DemoJobs:
    """Return the jobs, for a cluster and a lake; `overrides` are values of `--set`. Raises PipelineError."""
    known = registry.find()
    jobs = {name: known.named(name) for name in JOBS}
    deployed = Deployment.default(bootstrap, lake).with_prefix(prefix).with_overrides(jobs, overrides)
    reading = [name for name, job in jobs.items() if isinstance(job.source, Topic)]
    settings = {name: replace(deployed.settings(name), topic=prefix + ACCESS_LOG) for name in reading}
    return DemoJobs(jobs=jobs, deployment=replace(deployed, jobs={**deployed.jobs, **settings}))
