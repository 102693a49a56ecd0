"""Parsing of requests in JSON, and the reasons to reject them."""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.pipeline.records import raw_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _request(**fields: object) -> str:
    return json.dumps({"time": "2015-05-17T10:05:03Z", "client": "192.0.2.1", "status": 200, **fields})


_NGINX: Final = {
    "time_iso8601": "2015-05-17T12:05:03+02:00",
    "remote_addr": "192.0.2.1",
    "request_method": "GET",
    "request_uri": "/a?x=1",
    "server_protocol": "HTTP/1.1",
    "status": "404",
    "body_bytes_sent": "512",
    "http_referer": "-",
    "http_user_agent": "curl/8.5.0",
    "upstream": {"name": "unknown fields are ignored"},
}
_NO_TIME = json.dumps({"client": "192.0.2.1", "status": 200})
ACCEPTED: Final = {
    "names of nginx": json.dumps(_NGINX),
    "time in seconds": _request(time=1431857103.25),
    "time in milliseconds": _request(time=1431857103250),
    "time without a zone": _request(time="2015-05-17 10:05:03"),
    "size that is no number": _request(bytes="12k"),
    "largest size": _request(bytes=2**50 - 1),
}
REJECTED: Final[dict[str, tuple[str | None, str]]] = {
    "no value": (None, "the line is empty"),
    "torn": (_request()[:20], "not a JSON object"),
    "array": (f"[{_request()}]", "not a JSON object"),
    "number": ("7", "not a JSON object"),
    "no time": (
        _NO_TIME,
        "no time: give one of event_time, time, timestamp, @timestamp, time_iso8601, msec",
    ),
    "no date": (
        _request(time="10:05:03"),
        "the time is neither ISO 8601 nor seconds or milliseconds since 1970",
    ),
    "31 February": (
        _request(time="2015-02-31T10:05:03Z"),
        "the time is neither ISO 8601 nor seconds or milliseconds since 1970",
    ),
    "no client": (_request(client=None), "no client: give one of client, remote_addr, client_ip"),
    "status in words": (_request(status="OK"), "the status is not a number of three digits"),
    "negative size": (_request(bytes=-1), "the size is negative, or 2^50 bytes or more"),
    "size of 2^50 bytes": (_request(bytes=2**50), "the size is negative, or 2^50 bytes or more"),
    "size beyond a bigint": (_request(bytes=10**40), "the size is negative, or 2^50 bytes or more"),
    "size in quotes": (_request(bytes="9" * 30), "the size is negative, or 2^50 bytes or more"),
}


@pytest.fixture(scope="module")
def rows(spark: "SparkSession") -> dict[str, Any]:
    from headrace.pipeline.parsers import json_lines

    texts: dict[str, str | None] = {**ACCEPTED, **{name: line for name, (line, _) in REJECTED.items()}}
    found = json_lines.parsed(raw_records(spark, list(texts.values()))).orderBy("offset").collect()
    return dict(zip(texts, found, strict=True))


def test_an_object_with_the_names_of_nginx_has_all_its_fields(rows: dict[str, Any]) -> None:
    row = rows["names of nginx"]
    assert row.event_time == datetime.fromisoformat("2015-05-17 10:05:03")
    assert (row.client, row.method, row.path, row.page) == ("192.0.2.1", "GET", "/a?x=1", "/a")
    assert (row.protocol, row.status, row.bytes) == ("HTTP/1.1", 404, 512)
    assert (row.referer, row.user_agent) == (None, "curl/8.5.0")


def test_times_may_be_numbers(rows: dict[str, Any]) -> None:
    times = {rows[name].event_time for name in ("time in seconds", "time in milliseconds")}
    assert times == {datetime.fromisoformat("2015-05-17 10:05:03.250")}


def test_times_without_a_zone_are_utc(rows: dict[str, Any]) -> None:
    assert rows["time without a zone"].event_time == datetime.fromisoformat("2015-05-17 10:05:03")


def test_other_requests_are_accepted(rows: dict[str, Any]) -> None:
    assert {name: rows[name].reason for name in ACCEPTED} == dict.fromkeys(ACCEPTED)


def test_other_records_are_rejected_with_the_reason(rows: dict[str, Any]) -> None:
    assert {name: rows[name].reason for name in REJECTED} == {name: reason for name, (_, reason) in REJECTED.items()}
