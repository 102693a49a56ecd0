"""The jobs of the demo and their deployment, as data: importing this module starts nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from headrace.pipeline.spec import registry
from headrace.pipeline.spec.deployment import Deployment
from headrace.pipeline.spec.jobs import Changelog, Job, Topic
from headrace.pipeline.spec.params import seconds_of

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

_TRIGGER: Final = "2 seconds"
"""Maximum interval of a job. At its end, the demo would otherwise wait for jobs with intervals of 10 to 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJobs:
    """The jobs by name, and their deployment. Its prefix also applies to the topic with the lines."""

    jobs: dict[str, Job]
    deployment: Deployment

    @property
    def topic(self) -> str:
        return self.deployment.prefix + ACCESS_LOG

    @property
    def changelogs(self) -> dict[str, str]:
        """Result topics by job."""
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
    settings = {
        name: replace(
            deployed.settings(name),
            topic=prefix + ACCESS_LOG if isinstance(job.source, Topic) else None,
            trigger=None if seconds_of(job.trigger) < seconds_of(_TRIGGER) else _TRIGGER,
        )
        for name, job in jobs.items()
    }
    return DemoJobs(jobs=jobs, deployment=replace(deployed, jobs=settings))
