"""Watch moves until they have ended: a progress bar on a terminal, a line every ten seconds in a log."""

import sys
import time
from collections.abc import Callable

from headrace.cli import output
from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError
from headrace.cli.placement.progress import Progress
from headrace.cli.placement.requests import read_state
from headrace.cli.placement.state import Place, total
from headrace.cli.progress import Bar

_EVERY_S = 1.0
_LINE_EVERY_S = 10.0
_GIVE_UP_S = 60.0
"""Give up if no broker replies for this time."""


def watch(cluster: Cluster, wanted: Callable[[Place], bool], *, quiet: bool) -> None:
    """Wait until no wanted partition is moving. Raises CommandError if no broker replies for a minute."""
    if quiet or not output.is_terminal(sys.stderr):
        _follow(cluster, wanted, _Lines(quiet=quiet))
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn

    text = TextColumn("{task.fields[text]}", markup=False)
    with Bar(TextColumn("Moving"), BarColumn(bar_width=20), TaskProgressColumn(), text) as bar:

        def show(progress: Progress, text: str) -> None:
            bar.show(text, total=progress.total or None, completed=progress.total - progress.left)

        _follow(cluster, wanted, show)


class _Lines:
    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._printed = time.monotonic()

    def __call__(self, _: Progress, text: str) -> None:
        if not self._quiet and time.monotonic() - self._printed >= _LINE_EVERY_S:
            self._printed = time.monotonic()
            output.tell(f"Moving: {text}")


def _follow(cluster: Cluster, wanted: Callable[[Place], bool], show: Callable[[Progress, str], None]) -> None:
    progress = Progress()
    answered = time.monotonic()
    while True:
        try:
            state = read_state(cluster)
        except CommandError:
            # The controller may have failed; its successor continues the moves.
            if time.monotonic() - answered > _GIVE_UP_S:
                raise
            time.sleep(_EVERY_S)
            continue
        answered = time.monotonic()
        moving = [partition for partition in state.moving if wanted(partition.place)]
        if not moving:
            return
        left = total([state.bytes_left(partition) for partition in moving])
        progress.observe(answered, left or 0)
        show(progress, _text(progress, len(moving), left))
        time.sleep(_EVERY_S)


def _text(progress: Progress, partitions: int, left: int | None) -> str:
    parts = [output.count(partitions, "partition")]
    parts.append("size unknown" if left is None else f"{output.size(left)} to copy")
    if progress.rate:
        parts.append(f"{output.size(round(progress.rate))}/s")
    if progress.seconds_left is not None:
        parts.append(f"{output.seconds(max(progress.seconds_left, 1))} left")
    return ", ".join(parts)
