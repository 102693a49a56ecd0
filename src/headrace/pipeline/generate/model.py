"""All requests in time order: visitors start as often as the rate requires, crawlers at fixed intervals.

A seed always produces the same log: only `Random.random()` is called, and no transcendental function. Results of other
methods of `Random`, and of such functions, may differ between Python versions and platforms.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from math import ceil, inf
from random import Random
from typing import Final

from headrace.pipeline.generate.crawlers import Kind, crawl
from headrace.pipeline.generate.parameters import SESSION_GAP_S, Parameters
from headrace.pipeline.generate.people import BROWSERS, visits
from headrace.pipeline.generate.site import Request, Site

_LINES_PER_CRAWLERS: Final = 3600
"""Another crawler of each kind starts after this many lines."""
_ADDRESSES: Final = 1 << 24
_SCATTER: Final = 0x9E3779B1
"""Must be odd, so that different numbers have different addresses."""
_TRIES: Final = 20


def address(number: int) -> str:
    """Return the address of a client: 10.x.y.z."""
    scattered = number * _SCATTER % _ADDRESSES
    return f"10.{scattered >> 16}.{scattered >> 8 & 255}.{scattered & 255}"


def requests(parameters: Parameters) -> Iterator[Request]:
    """Yield requests in time order, without end."""
    return _Crowd(parameters).requests()


class _Crowd:
    """The clients with requests still to make, in a heap ordered by the time of their next request."""

    def __init__(self, parameters: Parameters) -> None:
        self._draw = Random(parameters.seed).random
        self._site = Site(parameters.start)
        self._population = parameters.population
        self._start = parameters.start
        # Lines that are logged twice count towards the rate.
        self._rate = parameters.rate / (1 + parameters.duplicates)
        self._agenda: list[tuple[int, int, Request, Iterator[Request]]] = []
        """Time, the client's number (which makes entries unique), its next request, and the following ones."""
        self._away_until: dict[int, float] = {}
        """End of the pause between sessions, by visitor; infinite during a visit."""
        self._crawlers = 0

    def requests(self) -> Iterator[Request]:
        agenda = self._agenda
        made = 0
        now = self._start
        crawlers_every = ceil(_LINES_PER_CRAWLERS / self._rate)
        next_crawlers = now
        while True:
            if now >= next_crawlers:
                self._send_crawlers(now, crawlers_every)
                next_crawlers += crawlers_every
            due = self._rate * (now + 1 - self._start)
            while True:
                while agenda and agenda[0][0] <= now:
                    _, number, request, later = agenda[0]
                    following = next(later, None)
                    if following is None:
                        heappop(agenda)
                        self._away_until[number] = request.time + SESSION_GAP_S + 1
                    else:
                        heapreplace(agenda, (following.time, number, following, later))
                    yield request
                    made += 1
                if made >= due or not self._send_visitor(now):
                    break
            now += 1

    def _send_visitor(self, now: int) -> bool:
        """Start a visit. Return False if all tried visitors are present, or left no longer than the session gap ago."""
        for _ in range(_TRIES):
            number = int(self._draw() * self._population)
            back = self._away_until.get(number)
            if back is None or back <= now:
                browser = BROWSERS[number * _SCATTER % len(BROWSERS)]
                visit = visits(self._draw, self._site, address(number), browser, back is not None, now)
                self._away_until[number] = inf
                self._add(number, visit)
                return True
        return False

    def _send_crawlers(self, now: int, within: int) -> None:
        for kind in Kind:
            self._crawlers += 1
            # Visitors have low numbers, crawlers the highest ones.
            number = _ADDRESSES - self._crawlers
            start = now + int(self._draw() * min(60, within))
            self._add(number, crawl(kind, self._draw, self._site, address(number), start))

    def _add(self, number: int, client: Iterator[Request]) -> None:
        first = next(client)
        heappush(self._agenda, (first.time, number, first, client))
