"""Five kinds of crawlers, which leave different traces in the log."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, TypeAlias

from headrace.pipeline.generate.parameters import SESSION_GAP_S
from headrace.pipeline.generate.people import BROWSERS, Draw
from headrace.pipeline.generate.site import PAGES, ROBOTS, Page, Request, Site, get


class Kind(StrEnum):
    """Kinds of crawlers. All but the first send the user agent of a browser."""

    NAMED = "named"
    """Calls itself a crawler, and views a few pages."""
    ROBOTS_READER = "robots reader"
    """Reads robots.txt, then views a few pages."""
    PAGE_WALKER = "page walker"
    """Views one page after another, without their assets."""
    PROBER = "prober"
    """Probes for vulnerable pages, which do not exist here."""
    SLOW_DRIP = "slow drip"
    """Views a page every few minutes for hours, always within the session gap, and never gives a referrer."""


_NAMES: Final = (
    "ExampleBot/2.1 (+https://bots.example/about)",
    "Mozilla/5.0 (compatible; WheelSpider/1.0)",
    "curl/8.5.0",
    "python-requests/2.32",
)
_NOT_EMPTY_BROWSERS: Final = BROWSERS[:-1]
_PROBED: Final = tuple(
    get(path)
    for path in (
        *(f"/{name}.php" for name in ("admin", "login", "setup", "config", "shell", "backup", "wp-login", "xmlrpc")),
        *("/.env", "/.git/config", "/cgi-bin/status?x=1", "/phpmyadmin/", "/actuator/env", "/backup.zip"),
    )
)
_GARBAGE: Final = "\\x16\\x03\\x01\\x02"
"""A TLS greeting to a port without TLS, as servers log it."""


_Step: TypeAlias = tuple[int, str, int, int]
"""Time, request, status, size."""
_Behaviour: TypeAlias = Callable[[Draw, Site, int], Iterator[_Step]]


def crawl(kind: Kind, draw: Draw, site: Site, client: str, start: int) -> Iterator[Request]:
    """Yield the requests of a crawler of this kind."""
    names = _NAMES if kind is Kind.NAMED else _NOT_EMPTY_BROWSERS
    name = names[int(draw() * len(names))]
    for time, request, status, size in _BEHAVIOURS[kind](draw, site, start):
        yield Request(time, client, request, status, size, "-", name, kind.value)


def _view(page: Page, time: int) -> _Step:
    return time, page.request, 200, page.size


def _named(draw: Draw, site: Site, time: int) -> Iterator[_Step]:
    for _ in range(15 + int(draw() * 45)):
        yield _view(site.choose(time, draw()), time)
        time += 5 + int(draw() * 15)


def _robots_reader(draw: Draw, site: Site, time: int) -> Iterator[_Step]:
    yield time, ROBOTS.request, 200, ROBOTS.size
    for _ in range(4 + int(draw() * 8)):
        time += 10 + int(draw() * 30)
        yield _view(site.choose(time, draw()), time)


def _page_walker(draw: Draw, _site: Site, time: int) -> Iterator[_Step]:
    first = int(draw() * len(PAGES))
    for number in range(first, first + 60 + int(draw() * 140)):
        yield _view(PAGES[number % len(PAGES)], time)
        time += 1 + int(draw() * 3)


def _prober(draw: Draw, _site: Site, time: int) -> Iterator[_Step]:
    yield time, _GARBAGE, 400, 226
    for _ in range(15 + int(draw() * 25)):
        time += draw() < 0.5
        yield time, _PROBED[int(draw() * len(_PROBED))], 403 if draw() < 0.1 else 404, 162


def _slow_drip(draw: Draw, site: Site, time: int) -> Iterator[_Step]:
    for _ in range(30 + int(draw() * 50)):
        yield _view(site.choose(time, draw()), time)
        time += SESSION_GAP_S // 6 + int(draw() * SESSION_GAP_S / 6)


_BEHAVIOURS: Final[dict[Kind, _Behaviour]] = {
    Kind.NAMED: _named,
    Kind.ROBOTS_READER: _robots_reader,
    Kind.PAGE_WALKER: _page_walker,
    Kind.PROBER: _prober,
    Kind.SLOW_DRIP: _slow_drip,
}
