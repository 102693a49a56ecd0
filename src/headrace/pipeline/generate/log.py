"""The log: the lines of the requests in order of arrival, some of them late, torn or logged twice."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from headrace.pipeline.generate.lines import Renderer, torn
from headrace.pipeline.generate.model import requests
from headrace.pipeline.generate.parameters import LATE_BY_S, Parameters
from headrace.pipeline.generate.partitions import partition_of
from headrace.pipeline.generate.truth import Truth


class Record(NamedTuple):
    """A line of the log, without its line ending, and its partition and key in a topic keyed by client."""

    partition: int
    key: bytes
    line: bytes


class _Held(NamedTuple):
    """A line that arrives once its partition has reached the event time `due`."""

    due: int
    number: int
    time: int
    record: Record


def log(parameters: Parameters, truth: Truth, stopped: Callable[[], bool] = lambda: False) -> Iterator[Record]:
    """Yield the records of the log, and count them in `truth`, which the caller must close.

    Once `stopped` returns True, only the late lines of earlier requests follow.
    """
    # A separate generator, so that mishaps do not change the visitors.
    chance = Random(f"mishaps of {parameters.seed}").random
    places: dict[str, tuple[int, bytes]] = {}
    held: list[list[_Held]] = [[] for _ in range(parameters.partitions)]
    newest = [0] * parameters.partitions
    torn_below = parameters.torn
    late_below = torn_below + parameters.late
    twice_below = late_below + parameters.duplicates
    mishaps = twice_below > 0
    render = Renderer().line
    end, max_lines = parameters.end, parameters.max_lines
    planned = 0
    for request in requests(parameters):
        if planned >= max_lines or request.time >= end or stopped():
            break
        line = render(request)
        planned += 1
        mishap = chance() if mishaps else 1.0
        if mishap < torn_below:
            line, reason = torn(line, chance(), chance())
            key = line.split(" ", 1)[0].encode()
            partition = partition_of(key, parameters.partitions)
            truth.rejected(partition, reason)
            yield Record(partition, key, line.encode())
            continue
        time, client = request.time, request.client
        place = places.get(client)
        if place is None:
            key = client.encode()
            place = places[client] = partition_of(key, parameters.partitions), key
        partition, key = place
        record = Record(partition, key, line.encode())
        truth.requested(request)
        if mishap < late_below:
            by = LATE_BY_S[int(chance() * len(LATE_BY_S))]
            heappush(held[partition], _Held(time + by, planned, time, record))
            continue
        newest[partition] = time
        truth.arrived(partition, 0)
        yield record
        if mishap < twice_below and planned < max_lines:
            planned += 1
            truth.requested(request)
            truth.duplicated()
            truth.arrived(partition, 0)
            yield record
        waiting = held[partition]
        while waiting and waiting[0].due <= time:
            late = heappop(waiting)
            truth.arrived(partition, time - late.time)
            yield late.record
    yield from _rest(held, newest, truth)


def _rest(held: list[list[_Held]], newest: list[int], truth: Truth) -> Iterator[Record]:
    """Yield the late lines that are left after the last request."""
    for partition, waiting in enumerate(held):
        while waiting:
            late = heappop(waiting)
            truth.arrived(partition, max(0, newest[partition] - late.time))
            newest[partition] = max(newest[partition], late.time)
            yield late.record
