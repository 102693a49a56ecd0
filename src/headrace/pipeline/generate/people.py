"""Visitors: sessions of page views with their assets, and pauses of known lengths."""

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from headrace.pipeline.generate.parameters import SESSION_GAP_S
from headrace.pipeline.generate.site import ASSETS, BROKEN, Page, Request, Site

BROWSERS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:131.0) Gecko/20100101 Firefox/131.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_6) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36",
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/129.0.0.0 Mobile",
    "-",
)
_SITES: Final = tuple(
    f"https://{host}/"
    for host in (
        "www.search.example",
        "search.example",
        "news.example.net",
        "forum.mills.example",
        "social.example",
        "m.social.example",
        "wiki.example.com",
        "blog.waterpower.example",
        "mail.example",
        "lists.example.net:8443",
        *(f"site-{number}.example" for number in range(30)),
    )
)
Draw: TypeAlias = Callable[[], float]
"""Random numbers in [0, 1)."""
_RETURNS: Final = 0.35
_BLOCK_ASSETS: Final = 0.3
_PAUSE_AT_GAP: Final = 0.02
"""The share of pauses as long as the session gap, or one second shorter: the session then continues."""


def visits(draw: Draw, site: Site, client: str, browser: str, known: bool, start: int) -> Iterator[Request]:
    """Yield the requests of a visitor from `start` on: sessions separated by pauses longer than the session gap.

    A `known` visitor's browser has cached the assets.
    """
    time = start
    while True:
        for request in _session(draw, site, client, browser, known, time):
            yield request
            time = request.time
        if draw() >= _RETURNS:
            return
        known = True
        # One second more than the gap is the shortest pause that ends a session.
        time += SESSION_GAP_S + 1 + (0 if draw() < 0.1 else int(draw() * 2 * SESSION_GAP_S))


def _session(draw: Draw, site: Site, client: str, browser: str, known: bool, time: int) -> Iterator[Request]:
    referer = _entrance(draw())
    views = 1 + int(8 * draw() * draw())
    blocks_assets = draw() < _BLOCK_ASSETS
    for view in range(views):
        page = site.choose(time, draw())
        yield _view(draw(), client, browser, time, page, referer)
        own = page.url if draw() < 0.8 else page.bare_url
        for asset in () if blocks_assets else (*page.images, *ASSETS) if view == 0 else page.images:
            time += draw() < 0.3
            unchanged = known and draw() < 0.7
            size = None if unchanged else asset.size
            yield Request(time, client, asset.request, 304 if unchanged else 200, size, own, browser, None)
        referer = own
        if view + 1 < views:
            time += _pause(draw(), draw())


def _pause(kind: float, length: float) -> int:
    """Return the seconds until the next view in the session, at most the session gap."""
    if kind < _PAUSE_AT_GAP:
        return SESSION_GAP_S - (length < 0.3)
    if kind < 0.1:
        return 120 + int(length * (SESSION_GAP_S - 120))
    return 3 + int(length * length * 120)


def _entrance(draw: float) -> str:
    """Return the referrer of a session's first request."""
    if draw < 0.45:
        return "-"
    place = (draw - 0.45) / 0.55
    return _SITES[int(place * place * place * len(_SITES))]


def _view(draw: float, client: str, browser: str, time: int, page: Page, referer: str) -> Request:
    """Return a request for the page. Most requests succeed; the rest are redirected, not found, forbidden or fail."""
    size: int | None = page.size + int(draw * 1000)
    request, status = page.request, 200
    if draw >= 0.82:
        if draw < 0.90:
            status, size = 304, None
        elif draw < 0.94:
            request = page.tagged
        elif draw < 0.95:
            request = page.absolute
        elif draw < 0.96:
            request, status, size = page.request.replace("GET", "POST", 1), 303, 0
        elif draw < 0.965:
            request, size = page.request.replace("GET", "HEAD", 1), None
        elif draw < 0.975:
            status, size = 301, 178
        elif draw < 0.99:
            request, status, size = BROKEN[int((draw - 0.975) / 0.015 * len(BROKEN)) % len(BROKEN)], 404, 555
        elif draw < 0.993:
            status, size = 403, 162
        elif draw < 0.996:
            status = 206
        else:
            status, size = (500 if draw < 0.999 else 503), 1024
    return Request(time, client, request, status, size, referer, browser, None)
