"""The jobs of an access log: an archive of requests, rejected lines, and statistics."""

from typing import Final

from headrace.pipeline.jobs.job import Job, Output
from headrace.pipeline.topics import ACCESS_LOG, TOP_PAGES
from headrace.pipeline.transforms import crawlers, lines, traffic

LATE_BY: Final = "10 minutes"
"""How much older than the newest request a request may be to be counted by the query itself; see `settle`."""
TOP_PAGES_COUNT: Final = 10

EVENTS: Final = Output(table="events", select=lines.events)
REJECTED: Final = Output(
    table="rejected", keys=("position",), topic=f"{ACCESS_LOG}.rejected", select=lines.rejected, headers=("reason",)
)
PAGE_VIEWS: Final = Output(table="page_views_per_minute", keys=("minute", "page"), topic="page-views-per-minute")
REQUEST_RATE: Final = Output(table="request_rate_per_minute", keys=("minute",), topic="request-rate-per-minute")
STATUS_CODES: Final = Output(table="status_codes", keys=("status",), topic="status-codes")
TOP: Final = Output(
    table="top_pages", keys=("rank",), topic=TOP_PAGES, select=lambda totals: traffic.top(totals, TOP_PAGES_COUNT)
)
CRAWLERS: Final = Output(table="crawlers_per_hour", keys=("hour", "client"), topic="crawlers-per-hour")

JOBS: Final = (
    Job(name="archive", transform=lambda parsed: parsed, output_mode="append", outputs=(EVENTS, REJECTED)),
    Job(
        name="page-views",
        transform=lambda parsed: traffic.page_views_per_minute(lines.events(parsed), LATE_BY),
        output_mode="update",
        outputs=(PAGE_VIEWS,),
    ),
    Job(
        name="request-rate",
        transform=lambda parsed: traffic.request_rate_per_minute(lines.events(parsed), LATE_BY),
        output_mode="update",
        outputs=(REQUEST_RATE,),
    ),
    Job(
        name="status-codes",
        transform=lambda parsed: traffic.status_codes(lines.events(parsed)),
        output_mode="update",
        outputs=(STATUS_CODES,),
    ),
    Job(
        name="top-pages",
        transform=lambda parsed: traffic.page_totals(lines.events(parsed)),
        output_mode="complete",
        outputs=(TOP,),
    ),
    Job(
        name="crawlers",
        transform=lambda parsed: crawlers.crawlers_per_hour(lines.events(parsed), LATE_BY),
        output_mode="update",
        outputs=(CRAWLERS,),
    ),
)
