"""Detection of crawlers."""

from typing import TYPE_CHECKING, Final

import pytest

from headrace.pipeline.jobs.crawlers import Crawlers, crawlers
from tests.pipeline.log_lines import combined
from tests.pipeline.records import events_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VISITS: Final[dict[str, tuple[list[str], list[str]]]] = {
    "192.0.2.1": (["/robots.txt"], ["read robots.txt"]),
    "192.0.2.2": ([f"/{number}" for number in range(25)], ["viewed 20 or more pages"]),
    "192.0.2.3": (["/"] * 100, ["asked 100 times or more"]),
    "192.0.2.4": (["/", "/style.css", "/logo.png", "/about", "/blog/", "/gone"] * 5, []),
}


@pytest.fixture(scope="module")
def reasons(spark: "SparkSession") -> dict[str, list[str]]:
    """The reasons by client address, from a single Spark job."""
    texts = [combined(path, client=client) for client, (paths, _) in VISITS.items() for path in paths]
    texts += [combined(f"/{n}.php", status=404, client="192.0.2.5") for n in range(10)]
    texts += [combined(client="192.0.2.6", user_agent="Mozilla/5.0 (compatible; Googlebot/2.1)")]
    texts += [combined(client="192.0.2.7", user_agent="curl/8.5.0")]
    texts += [combined(client="192.0.2.8", user_agent="Robotics Weekly Reader")]
    texts += [combined(client="192.0.2.9", user_agent="-")]
    rows = crawlers(events_of(spark, texts), Crawlers()).collect()
    return {row.client: row.reasons for row in rows}


@pytest.mark.parametrize("client", VISITS)
def test_a_client_is_judged_by_its_requests(reasons: dict[str, list[str]], client: str) -> None:
    assert reasons.get(client, []) == VISITS[client][1]


def test_requests_for_missing_pages_are_a_reason(reasons: dict[str, list[str]]) -> None:
    assert reasons["192.0.2.5"] == ["asked for 10 or more pages that do not exist"]


@pytest.mark.parametrize("client", ["192.0.2.6", "192.0.2.7"])
def test_a_client_that_calls_itself_a_crawler_is_one(reasons: dict[str, list[str]], client: str) -> None:
    assert reasons[client] == ["calls itself a crawler"]


@pytest.mark.parametrize("client", ["192.0.2.8", "192.0.2.9"])
def test_other_user_agents_are_no_reason(reasons: dict[str, list[str]], client: str) -> None:
    assert client not in reasons


def test_clients_are_judged_hour_by_hour(spark: "SparkSession") -> None:
    times = ["17/May/2015:10:59:59 +0000", "17/May/2015:11:00:00 +0000"]
    texts = [combined(f"/{n}", time=times[n % 2]) for n in range(38)]
    texts += [combined("/robots.txt", time=time, client="192.0.2.2") for time in times]
    rows = crawlers(events_of(spark, texts), Crawlers()).collect()
    assert [(row.client, row.reasons) for row in rows] == [("192.0.2.2", ["read robots.txt"])] * 2
