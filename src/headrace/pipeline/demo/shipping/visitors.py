"""Visitors of the demo's web site: people with browsers, crawlers, and a vulnerability scanner."""

import http.client
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_PEOPLE: Final = 40
_TAKES_S: Final = 12.0
_SITE: Final = ("/", "/about", "/blog/", "/blog/water-wheels", "/blog/mill-ponds", "/blog/sluice-gates", "/contact")
_PROBED: Final = tuple(f"/{name}.php" for name in ("admin", "login", "setup", "config", "shell", "backup", "test"))
_BROWSERS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_6) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36",
)
_CRAWLERS: Final = ("ExampleBot/2.1 (+https://example.org/bot)", "Mozilla/5.0 (compatible; WheelSpider/1.0)")


@dataclass(frozen=True, slots=True)
class _Visit:
    address: str
    user_agent: str
    path: str
    referer: str = "-"


class Visitors:
    """A fixed number of `requests` to one server, the same in every run, spread over a few seconds."""

    def __init__(self, port: int) -> None:
        self._port = port
        visits = random.Random(1)
        planned = [*_people(visits), *_crawlers(), *_prober()]
        visits.shuffle(planned)
        self._planned = planned
        self.requests = len(planned)

    def run(self, stop: threading.Event, skip: Callable[[bytes], bool]) -> None:
        """Make the requests, but leave one out if `skip` returns True for its client. Return early if stopped.

        Raises `OSError` if the server does not respond.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        due = time.monotonic()
        try:
            for visit in self._planned:
                if skip(visit.address.encode()):
                    continue
                due += _TAKES_S / self.requests
                if stop.wait(max(0.0, due - time.monotonic())):
                    return
                headers = {"X-Forwarded-For": visit.address, "User-Agent": visit.user_agent, "Referer": visit.referer}
                connection.request("GET", visit.path, headers=headers)
                connection.getresponse().read()
        finally:
            connection.close()


def _people(choose: random.Random) -> Iterator[_Visit]:
    """Yield each person's visits: a page with its assets, then more pages. Some people search; some searches fail."""
    for number in range(_PEOPLE):
        address, browser = f"198.51.100.{number + 1}", choose.choice(_BROWSERS)
        page = choose.choice(_SITE)
        yield _Visit(address, browser, page)
        yield _Visit(address, browser, "/style.css", page)
        yield _Visit(address, browser, "/logo.png", page)
        for following in choose.choices(_SITE, weights=(6, 1, 3, 4, 2, 2, 1), k=choose.randint(1, 8)):
            yield _Visit(address, browser, following, page)
            page = following
        if number % 3 == 0:
            yield _Visit(address, browser, f"/search?q={choose.choice(('wheel', 'mill', 'fail'))}", page)
        if number % 5 == 0:
            yield _Visit(address, browser, "/blog/gone", page)


def _crawlers() -> Iterator[_Visit]:
    for number, crawler in enumerate(_CRAWLERS):
        address = f"203.0.113.{number + 1}"
        yield _Visit(address, crawler, "/robots.txt")
        for page in _SITE * 4:
            yield _Visit(address, crawler, page)


def _prober() -> Iterator[_Visit]:
    for path in _PROBED * 3:
        yield _Visit("203.0.113.99", _BROWSERS[2], path)
