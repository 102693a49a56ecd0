"""The web site: pages by popularity, one page whose popularity rises, and their assets."""

from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

HOST: Final = "www.example.org"
_SUBJECTS: Final = (
    "water-wheels",
    "mill-ponds",
    "sluice-gates",
    "headraces",
    "tailraces",
    "weirs",
    "turbines",
    "penstocks",
    "dams",
    "canals",
    "locks",
    "aqueducts",
    "springs",
    "wells",
    "pumps",
    "floods",
)
_SECTIONS: Final = ("articles", "guides", "projects", "notes", "tags")
_FORMS: Final = ("", "history.html", "building.html", "repair.html", "faq.html")
_TABLE: Final = 1 << 14

RISING_PATH: Final = "/articles/the-great-flood.html"
RISING_FROM: Final = 0.002
RISING_PER_HOUR: Final = 0.015
RISING_TO: Final = 0.25


class Request(NamedTuple):
    """A request that the server logs; `time` is in seconds since the epoch, `size` in bytes, None for no body."""

    time: int
    client: str
    request: str
    """Method, path and protocol; servers log any garbage here."""
    status: int
    size: int | None
    referer: str
    """A hyphen if missing, like `user_agent`."""
    user_agent: str
    kind: str | None
    """The kind of crawler; None for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    request: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page. `request`, `tagged` (with a query) and `absolute` (with a host) are request lines for it."""

    path: str
    request: str
    tagged: str
    absolute: str
    url: str
    bare_url: str
    """`url` without www."""
    size: int
    images: tuple[Asset, ...]


def _page(path: str, number: int) -> Page:
    stem = path.strip("/").replace("/", "-").removesuffix(".html") or "home"
    return Page(
        path=path,
        request=get(path),
        tagged=get(f"{path}?utm_source=newsletter&n={number % 7}"),
        absolute=get(f"http://{HOST}{path}"),
        url=f"https://{HOST}{path}",
        bare_url=f"https://{HOST.removeprefix('www.')}{path}",
        size=3000 + number * 7919 % 40_000,
        images=tuple(
            Asset(request=get(f"/images/{stem}-{n}.{'JPG' if number % 5 == 0 else 'png'}"), size=9000 + number * 131)
            for n in range(number % 3)
        ),
    )


def get(path: str) -> str:
    return f"GET {path} HTTP/1.1"


PAGES: Final = tuple(
    _page(path, number)
    for number, path in enumerate(
        ("/", *(f"/{section}/{subject}/{form}" for form, subject, section in product(_FORMS, _SUBJECTS, _SECTIONS)))
    )
)
"""Most popular first."""
RISING: Final = _page(RISING_PATH, 4)
ASSETS: Final = (
    Asset(request=get("/css/site.css?v=12"), size=14_620),
    Asset(request=get("/js/site.mjs"), size=31_377),
    Asset(request=get("/images/logo.svg"), size=2_911),
    Asset(request=get("/fonts/text.woff2"), size=48_012),
    Asset(request=get("/favicon.ico"), size=1_406),
)
"""Assets of every page, which browsers cache."""
ROBOTS: Final = Asset(request=get("/robots.txt"), size=142)
BROKEN: Final = tuple(get(f"/old/{subject}.htm") for subject in _SUBJECTS)
"""Requests for pages that do not exist."""


def _popularity() -> tuple[Page, ...]:
    """Return a table in which pages appear in proportion to 1/rank (Zipf's law)."""
    total = sum(1 / rank for rank in range(1, len(PAGES) + 1))
    table: list[Page] = []
    weight = 0.0
    for rank, page in enumerate(PAGES, 1):
        weight += 1 / rank
        table.extend([page] * (round(weight / total * _TABLE) - len(table)))
    return tuple(table)


_POPULARITY: Final = _popularity()


class Site:
    """Chooses pages by Zipf's law, except for one page, whose share of views rises steadily."""

    def __init__(self, start: int) -> None:
        self._start = start

    def rising_share(self, time: int) -> float:
        """Return the rising page's share of the views at this time."""
        return min(RISING_TO, RISING_FROM + RISING_PER_HOUR * (time - self._start) / 3600)

    def choose(self, time: int, draw: float) -> Page:
        """Return a page for a random number in [0, 1)."""
        share = self.rising_share(time)
        if draw < share:
            return RISING
        return _POPULARITY[int((draw - share) / (1 - share) * _TABLE)]
