"""Plan a reset: the partitions and their new offsets, from options or from a file."""

import csv
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.cli.cluster import Offsets
from headrace.cli.failures import CommandError, usage_error
from headrace.wording import is_utf8, printable

_JSON_HINT: Final = (
    'For example [{"topic": "orders", "partition": 0, "offset": 42}], or the output of `headrace groups reset --json`.'
)

MAX_PARTITION: Final = 2**31 - 1
_SHOWN_DIGITS: Final = 20

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Step:
    """The reset of a partition's committed offset from `current` (None if there is none) to `new`."""

    topic: str
    partition: int
    current: int | None
    new: int
    wanted: int
    """The requested offset; `new` is the nearest one in the partition."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of partitions, as ranges: users may give huge ones."""

    ranges: tuple[range, ...]
    """Sorted, without overlaps."""

    def __contains__(self, number: object) -> bool:
        return any(number in each for each in self.ranges)

    def __or__(self, other: "Numbers") -> "Numbers":
        return _merged([*self.ranges, *other.ranges])

    @property
    def only(self) -> int | None:
        """The number if there is exactly one."""
        first = next(iter(self.ranges), range(0))
        return first[0] if len(self.ranges) == 1 and len(first) == 1 else None

    def first_missing(self, known: Collection[int]) -> int | None:
        """Return the lowest of the numbers that is not among `known`."""
        return next((number for each in self.ranges for number in each if number not in known), None)


def _merged(ranges: Iterable[range]) -> Numbers:
    merged: list[range] = []
    for each in sorted(filter(None, ranges), key=lambda each: each.start):
        if merged and each.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(each.stop, merged[-1].stop))
        else:
            merged.append(each)
    return Numbers(tuple(merged))


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected topics and their selected partitions; None means all partitions."""

    topics: Mapping[str, Numbers | None]

    def takes(self, place: Place) -> bool:
        """Return True if the partition is selected; an empty selection selects all partitions."""
        if not self.topics:
            return True
        partitions = self.topics.get(place[0], Numbers(()))
        return partitions is None or place[1] in partitions


def parse_selection(texts: Sequence[str], option: str) -> Selection:
    """Parse 'orders', 'orders:0,2' or 'orders:0-3'. Raises CommandError."""
    topics: dict[str, Numbers | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not topic or (colon and not re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", numbers)):
            raise usage_error(
                f"{option}: '{text}' is not TOPIC or TOPIC:PARTITIONS",
                "Examples: 'orders', 'orders:0,2', 'orders:0-3'.",
            )
        if not colon:
            topics[topic] = None
            continue
        ranges = []
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            ranges.append(range(_number(first, option), _number(last or first, option) + 1))
        known = topics.get(topic, Numbers(()))
        topics[topic] = None if known is None else known | Numbers(tuple(ranges))
    return Selection(topics)


def _number(digits: str, option: str) -> int:
    # Python refuses to convert thousands of digits.
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(MAX_PARTITION)) or int(significant) > MAX_PARTITION:
        shown = digits if len(digits) <= _SHOWN_DIGITS else f"{digits[:_SHOWN_DIGITS]}..."
        raise usage_error(f"{option}: {shown} is not a partition", f"The highest possible number is {MAX_PARTITION}.")
    return int(significant)


def plan(current: Mapping[Place, int], bounds: Mapping[Place, Offsets], wanted: Mapping[Place, int]) -> list[Step]:
    """Return the steps to the wanted offsets, clamped to the bounds of each partition."""
    return [
        Step(*place, current.get(place), min(max(offset, bounds[place].earliest), bounds[place].latest), offset)
        for place, offset in sorted(wanted.items())
    ]


def read_offsets(path: str) -> dict[str, dict[Place, int]]:
    """Read a file of offsets. Return them by group, with '' for offsets without a group.

    The formats are those of `headrace groups reset` (JSON or tab-separated) and the CSV that Kafka's tool exports:
    'topic,partition,offset' or 'group,topic,partition,offset'. Raises CommandError.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    offsets = _from_json(text, path) if text.lstrip().startswith(("[", "{")) else _from_lines(text, path)
    for name in {*offsets, *(topic for places in offsets.values() for topic, _ in places)}:
        if not is_utf8(name):
            raise CommandError(f"{path}: the name '{printable(name)}' contains an unpaired surrogate")
    return offsets


def _from_json(text: str, path: str) -> dict[str, dict[Place, int]]:
    offsets: dict[str, dict[Place, int]] = {}
    number = 0
    try:
        document = json.loads(text)
        for entry in document["offsets"] if isinstance(document, dict) else document:
            number += 1
            new = entry["new"] if "new" in entry else entry["offset"]
            group = str(document.get("group", "")) if isinstance(document, dict) else str(entry.get("group", ""))
            offsets.setdefault(group, {})[str(entry["topic"]), _partition(entry["partition"])] = int(new)
    except (json.JSONDecodeError, RecursionError) as error:
        raise CommandError(f"{path} is not JSON: {error}", _JSON_HINT) from None
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):  # Python reads 1e400 as infinity
        lack = f", entry {number}: expected 'topic', 'partition' and 'offset'" if number else " has no list of offsets"
        raise CommandError(f"{path}{lack}", _JSON_HINT) from None
    return offsets


def _from_lines(text: str, path: str) -> dict[str, dict[Place, int]]:
    lines = text.splitlines()
    rows = list(csv.reader(lines, delimiter="\t" if lines and "\t" in lines[0] else ","))
    place_of_new = -1
    if rows and [cell.lower() for cell in rows[0][:2]] == ["topic", "partition"]:
        # The columns of this command: topic, partition, current, new.
        place_of_new = rows[0].index("new") - 2 if "new" in rows[0] else -1
        rows, start = rows[1:], 2
    else:
        start = 1
    offsets: dict[str, dict[Place, int]] = {}
    for number, row in enumerate(rows, start):
        if not row:
            continue
        named = len(row) == 4 and place_of_new == -1
        group, rest = (row[0], row[1:]) if named else ("", row)
        try:
            offsets.setdefault(group, {})[rest[0], _partition(rest[1])] = int(rest[2:][place_of_new])
        except (ValueError, IndexError):
            raise CommandError(
                f"{path}, line {number}: expected 'topic,partition,offset', not '{lines[number - 1]}'",
                "For example 'orders,0,42', or with a group: 'billing,orders,0,42'.",
            ) from None
    return offsets


def _partition(value: Any) -> int:
    """Return the number of a partition. Raises ValueError or TypeError."""
    number = int(value)
    if not 0 <= number <= MAX_PARTITION:
        raise ValueError(f"{number} is not a partition")
    return number


def missing_place(selection: Selection, known: Collection[Place]) -> str | None:
    """Return a selected topic or partition that is not among `known`, as text; None if none is missing."""
    for topic, partitions in selection.topics.items():
        existing = {partition for name, partition in known if name == topic}
        if not existing:
            return f"topic '{topic}'"
        missing = None if partitions is None else partitions.first_missing(existing)
        if missing is not None:
            return f"partition {missing} of topic '{topic}'"
    return None
