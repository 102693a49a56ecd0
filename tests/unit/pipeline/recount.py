"""A slow, simple recount of an access log, without the code under test."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

_GOOD: Final = re.compile(r'(\S+) - - \[([^]]+)\] "([^"]*)" (\d{3}) (\d+|-) "([^"]*)" "([^"]*)"')
_ASSET: Final = re.compile(
    r"\.(css|js|mjs|map|json|png|jpe?g|gif|svg|ico|webp|avif|bmp|woff2?|ttf|otf|eot|mp[34]|webm|swf)$|^/robots\.txt$",
    re.IGNORECASE,
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_GAP: Final = timedelta(minutes=30)


@dataclass(frozen=True)
class Line:
    """A well-formed line; `page` is None unless the request shows one."""

    number: int
    client: str
    time: datetime
    request: str
    status: int
    size: int
    referer: str
    user_agent: str
    page: str | None


def well_formed(lines: Iterable[bytes]) -> list[Line]:
    return [found for number, text in enumerate(lines) if (found := _parsed(number, text.decode())) is not None]


def _parsed(number: int, text: str) -> Line | None:
    match = _GOOD.fullmatch(text)
    if match is None:
        return None
    client, time, request, status, size, referer, user_agent = match.groups()
    at = _time(time)
    page = None
    words = request.split(" ")
    if words[0] == "GET" and (status.startswith("2") or status == "304"):
        path = re.sub(r"^[a-z]+://[^/]*", "", words[1])
        path = re.split(r"[?#]", path)[0]
        page = None if _ASSET.search(path) or not path else path
    return Line(number, client, at, request, int(status), 0 if size == "-" else int(size), referer, user_agent, page)


@cache
def _time(text: str) -> datetime:
    # strptime takes five times as long
    day, month, year, clock = re.split("[/:]", text, maxsplit=3)
    return datetime.fromisoformat(f"{year}-{_MONTHS.index(month) + 1:02}-{day}T{clock.replace(' ', '')}")


def sessions(lines: Iterable[Line]) -> list[list[Line]]:
    """Return the sessions of all clients, with a gap of 30 minutes."""
    by_client: defaultdict[str, list[Line]] = defaultdict(list)
    for line in sorted(lines, key=lambda line: line.time):
        by_client[line.client].append(line)
    found: list[list[Line]] = []
    for requests in by_client.values():
        last: datetime | None = None
        for line in requests:
            if last is None or line.time - last > _GAP:
                found.append([])
            found[-1].append(line)
            last = line.time
    return found


def recounted(good: list[Line]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of the truth that follow from well-formed lines."""
    minutes: defaultdict[str, list[Line]] = defaultdict(list)
    for line in good:
        minutes[iso(line.time.replace(second=0))].append(line)
    views: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for line in good:
        if line.page:
            views[iso(line.time.replace(minute=0, second=0)), line.page].append(line.client)
    referrers = Counter((iso(line.time)[:10], _host(line.referer)) for line in good)
    visitors: defaultdict[str, set[str]] = defaultdict(set)
    for line in good:
        visitors[iso(line.time)[:10]].add(line.client)
    return {
        "page_views": [
            {"hour": hour, "page": page, "views": len(clients), "visitors": len(set(clients))}
            for (hour, page), clients in views.items()
        ],
        "visitors": [{"day": day, "visitors": len(clients)} for day, clients in visitors.items()],
        "referrers": [{"day": day, "host": host, "requests": count} for (day, host), count in referrers.items()],
        "sessions": [
            {
                "client": session[0].client,
                "start": iso(session[0].time),
                "end": iso(session[-1].time),
                "requests": len(session),
                "views": sum(line.page is not None for line in session),
                "pages": len({line.page for line in session} - {None}),
            }
            for session in sessions(good)
        ],
        "traffic": [
            {
                "minute": minute,
                "requests": len(lines),
                "client_errors": sum(400 <= line.status < 500 for line in lines),
                "server_errors": sum(line.status >= 500 for line in lines),
                "bytes": sum(line.size for line in lines),
            }
            for minute, lines in minutes.items()
        ],
        "status_codes": [
            {"status": status, "requests": count} for status, count in Counter(line.status for line in good).items()
        ],
    }


def late_by_s(good: list[Line], partition: dict[str, int]) -> dict[int, Counter[int]]:
    """Return the late lines by partition and seconds, for the partitions of clients."""
    newest: dict[int, datetime] = {}
    late: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for line in good:
        place = partition[line.client]
        behind = int((newest.get(place, line.time) - line.time).total_seconds())
        if behind > 0:
            late[place][behind] += 1
        newest[place] = max(newest.get(place, line.time), line.time)
    return late


def quarantined(partitions: list[int], good: list[Line]) -> list[tuple[int, int, int]]:
    """Return number (from 1), partition and offset of the other lines, from the partitions of all lines."""
    well_formed_numbers = {line.number for line in good}
    offsets: Counter[int] = Counter()
    found: list[tuple[int, int, int]] = []
    for number, partition in enumerate(partitions):
        if number not in well_formed_numbers:
            found.append((number + 1, partition, offsets[partition]))
        offsets[partition] += 1
    return found


def iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _host(referer: str) -> str | None:
    return None if referer == "-" else referer.split("/")[2].partition(":")[0].lower()
