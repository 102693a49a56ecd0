"""Detection of crawlers."""

from typing import TYPE_CHECKING, Final

from headrace.pipeline.jobs.crawlers import Crawlers, crawlers
from tests.pipeline.log_lines import combined
from tests.pipeline.records import events_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUESTS: Final = {
    "192.0.2.1": ["/robots.txt"],
    "192.0.2.2": [f"/{number}" for number in range(25)],
    "192.0.2.3": ["/"] * 100,
    "192.0.2.4": ["/", "/style.css", "/logo.png", "/about", "/blog/", "/gone"] * 5,
}
USER_AGENTS: Final = {
    "192.0.2.6": "Mozilla/5.0 (compatible; Googlebot/2.1)",
    "192.0.2.7": "curl/8.5.0",
    "192.0.2.8": "Robotics Weekly Reader",
    "192.0.2.9": "-",
}


def test_clients_are_judged_by_their_requests_and_user_agents(spark: "SparkSession") -> None:
    texts = [combined(path, client=client) for client, paths in REQUESTS.items() for path in paths]
    texts += [combined(f"/{n}.php", status=404, client="192.0.2.5") for n in range(10)]
    texts += [combined(client=client, user_agent=agent) for client, agent in USER_AGENTS.items()]
    rows = crawlers(events_of(spark, texts), Crawlers()).collect()
    assert {row.client: row.reasons for row in rows} == {
        "192.0.2.1": ["read robots.txt"],
        "192.0.2.2": ["viewed 20 or more pages"],
        "192.0.2.3": ["asked 100 times or more"],
        "192.0.2.5": ["asked for 10 or more pages that do not exist"],
        "192.0.2.6": ["calls itself a crawler"],
        "192.0.2.7": ["calls itself a crawler"],
    }


def test_clients_are_judged_hour_by_hour(spark: "SparkSession") -> None:
    times = ["17/May/2015:10:59:59 +0000", "17/May/2015:11:00:00 +0000"]
    texts = [combined(f"/{n}", time=times[n % 2]) for n in range(38)]
    texts += [combined("/robots.txt", time=time, client="192.0.2.2") for time in times]
    rows = crawlers(events_of(spark, texts), Crawlers()).collect()
    assert [(row.client, row.reasons) for row in rows] == [("192.0.2.2", ["read robots.txt"])] * 2
