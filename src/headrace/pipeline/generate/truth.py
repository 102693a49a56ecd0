"""The truth about a log: the expected results of the pipeline, computed in plain Python while the log is generated.

The code shares nothing with `headrace.pipeline.jobs`, so that each can reveal errors in the other.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeAlias

from headrace.pipeline.generate.parameters import SESSION_GAP_S
from headrace.pipeline.generate.site import Request

Value: TypeAlias = "str | int | Mapping[str, int] | None"
Row: TypeAlias = dict[str, Value]

TABLES: Final = (
    "page_views",
    "visitors",
    "referrers",
    "sessions",
    "traffic",
    "status_codes",
    "crawlers",
    "partitions",
    "quarantined",
)

_ASSETS: Final = tuple(
    f".{name}"
    for name in (
        *("css", "js", "mjs", "map", "json"),
        *("png", "jpg", "jpeg", "gif", "svg", "ico", "webp", "avif", "bmp"),
        *("woff", "woff2", "ttf", "otf", "eot"),
        *("mp3", "mp4", "webm", "swf"),
    )
)
_GET: Final = re.compile(r"GET (\S+)(?: HTTP/\d(?:\.\d)?)?", re.ASCII)


def viewed_page(request: str) -> str | None:
    """Return the page that a successful request shows; None for assets, malformed requests, and methods but GET."""
    found = _GET.fullmatch(request)
    if found is None:
        return None
    page = page_of(found[1])
    return None if not page or is_asset(page) else page


def page_of(path: str) -> str:
    """Return the path without scheme, host, query and fragment."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme.isascii() and scheme.isalpha() and scheme.islower():
        slash = rest.find("/")
        path = rest[slash:] if slash >= 0 else ""
    return path.partition("#")[0].partition("?")[0]


def is_asset(page: str) -> bool:
    """Return True for the site's robots.txt, and for names of styles, scripts, images, fonts, sounds and films."""
    name = page.lower()
    return name == "/robots.txt" or name.endswith(_ASSETS)


class _Session:
    """An open session of a client."""

    __slots__ = ("last", "pages", "requests", "start", "views")

    def __init__(self, time: int) -> None:
        self.start = self.last = time
        self.requests = self.views = 0
        self.pages: set[str] = set()


class _Crawler:
    __slots__ = ("first", "kind", "last", "requests", "user_agent")

    def __init__(self, request: Request) -> None:
        self.kind, self.user_agent, self.first = request.kind, request.user_agent, request.time
        self.last, self.requests = request.time, 0


class Truth:
    """Computes the expected results of the generated requests.

    Takes requests in time order, and passes rows of `TABLES` to `write` as soon as they are complete.
    """

    def __init__(self, partitions: int, write: Callable[[str, Row], None]) -> None:
        self._write = write
        self._pages: dict[str, str | None] = {}
        self._hosts: dict[str, str | None] = {"-": None}
        self._minute = -1
        self._day = -1
        self._traffic = [0, 0, 0, 0]
        self._views: Counter[str] = Counter()
        self._viewers: defaultdict[str, set[str]] = defaultdict(set)
        self._visitors: set[str] = set()
        self._referrers: Counter[str | None] = Counter()
        self._statuses: Counter[int] = Counter()
        self._sessions: dict[str, _Session] = {}
        self._crawlers: dict[str, _Crawler] = {}
        self._lines = [0] * partitions
        self._rejected = [0] * partitions
        self._late: list[Counter[int]] = [Counter() for _ in range(partitions)]
        self._duplicates = 0
        self._total_sessions = self._short_sessions = 0
        self._total_views = self._total_bytes = 0
        self._first: int | None = None

    def requested(self, request: Request) -> None:
        """Count a request whose line is well-formed. Times must not decrease."""
        time, client, text, status, size, referer, _, kind = request
        if time // 60 != self._minute:
            self._turn(time)
        traffic = self._traffic
        traffic[0] += 1
        if status >= 500:
            traffic[2] += 1
        elif status >= 400:
            traffic[1] += 1
        if size is not None:
            traffic[3] += size
        self._statuses[status] += 1
        self._visitors.add(client)
        if referer not in self._hosts:
            self._hosts[referer] = referer.partition("://")[2].partition("/")[0].partition(":")[0].lower()
        self._referrers[self._hosts[referer]] += 1
        session = self._sessions.get(client)
        if session is None or time - session.last > SESSION_GAP_S:
            if session is not None:
                self._end(client, session)
            session = self._sessions[client] = _Session(time)
        session.last = time
        session.requests += 1
        if 200 <= status <= 299 or status == 304:
            if text not in self._pages:
                self._pages[text] = viewed_page(text)
            page = self._pages[text]
            if page is not None:
                self._views[page] += 1
                self._viewers[page].add(client)
                session.views += 1
                session.pages.add(page)
        if kind is not None:
            crawler = self._crawlers.get(client)
            if crawler is None:
                crawler = self._crawlers[client] = _Crawler(request)
            crawler.last = time
            crawler.requests += 1

    def duplicated(self) -> None:
        """Count a line logged twice; also call `requested` and `arrived` for its second copy."""
        self._duplicates += 1

    def arrived(self, partition: int, late_by: int) -> None:
        """Count a well-formed line of a partition, in order of arrival.

        `late_by` is the time in seconds from its event time to the latest event time of earlier lines in its partition;
        0 if it is on time.
        """
        self._lines[partition] += 1
        if late_by:
            self._late[partition][late_by] += 1

    def rejected(self, partition: int, reason: str) -> None:
        """Count a torn line."""
        self._write(
            "quarantined",
            {"partition": partition, "offset": self._lines[partition], "line": sum(self._lines) + 1, "reason": reason},
        )
        self._lines[partition] += 1
        self._rejected[partition] += 1

    def close(self) -> dict[str, Value]:
        """Write the remaining rows, and return the totals."""
        last = max((session.last for session in self._sessions.values()), default=None)
        self._turn(None)
        for client, session in self._sessions.items():
            self._end(client, session)
        for status, count in sorted(self._statuses.items()):
            self._write("status_codes", {"status": status, "requests": count})
        for client, crawler in self._crawlers.items():
            self._write(
                "crawlers",
                {
                    "client": client,
                    "kind": crawler.kind,
                    "user_agent": crawler.user_agent,
                    "first": iso(crawler.first),
                    "last": iso(crawler.last),
                    "requests": crawler.requests,
                },
            )
        for partition, late in enumerate(self._late):
            self._write(
                "partitions",
                {
                    "partition": partition,
                    "lines": self._lines[partition],
                    "quarantined": self._rejected[partition],
                    "late": late.total(),
                    "late_by_s": {str(seconds): count for seconds, count in sorted(late.items())},
                },
            )
        return {
            "lines": sum(self._lines),
            "requests": sum(self._lines) - sum(self._rejected),
            "quarantined": sum(self._rejected),
            "duplicates": self._duplicates,
            "late": sum(late.total() for late in self._late),
            "first": None if self._first is None else iso(self._first),
            "last": None if last is None else iso(last),
            "clients": len(self._sessions),
            "views": self._total_views,
            "bytes": self._total_bytes,
            "sessions": self._total_sessions,
            "sessions_of_one_request": self._short_sessions,
            "crawlers": len(self._crawlers),
        }

    def _turn(self, time: int | None) -> None:
        """Begin the minute of `time`: write the rows of the previous one, and of its hour and day if they have ended.

        None ends the log: write the rows of the last minute, hour and day.
        """
        minute = None if time is None else time // 60
        ended = self._minute
        if ended < 0:
            self._first = time
        else:
            self._end_minute(ended)
            if minute is None or minute // 60 != ended // 60:
                self._end_hour(ended // 60)
            if minute is None or minute // 1440 != ended // 1440:
                self._end_day(ended // 1440)
        self._minute = -1 if minute is None else minute

    def _end_minute(self, minute: int) -> None:
        requests, client_errors, server_errors, size = self._traffic
        self._write(
            "traffic",
            {
                "minute": iso(minute * 60),
                "requests": requests,
                "client_errors": client_errors,
                "server_errors": server_errors,
                "bytes": size,
            },
        )
        self._total_bytes += size
        self._traffic = [0, 0, 0, 0]

    def _end_hour(self, hour: int) -> None:
        for page, views in sorted(self._views.items()):
            visitors = len(self._viewers[page])
            self._write("page_views", {"hour": iso(hour * 3600), "page": page, "views": views, "visitors": visitors})
        self._total_views += self._views.total()
        self._views.clear()
        self._viewers.clear()

    def _end_day(self, day: int) -> None:
        date = iso(day * 86400)[:10]
        self._write("visitors", {"day": date, "visitors": len(self._visitors)})
        for host, requests in sorted(self._referrers.items(), key=lambda item: item[0] or ""):
            self._write("referrers", {"day": date, "host": host, "requests": requests})
        self._visitors.clear()
        self._referrers.clear()

    def _end(self, client: str, session: _Session) -> None:
        self._write(
            "sessions",
            {
                "client": client,
                "start": iso(session.start),
                "end": iso(session.last),
                "requests": session.requests,
                "views": session.views,
                "pages": len(session.pages),
            },
        )
        self._total_sessions += 1
        self._short_sessions += session.requests == 1


def iso(time: int) -> str:
    """Format seconds since the epoch as '2015-05-17T10:05:03Z'."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
