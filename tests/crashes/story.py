"""What was done to a partition, and what may therefore be found of it after a crash at any point."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID

from headrace.wire.batch import BatchHeader, parse_header


class Batch(NamedTuple):
    """A batch as it stands in the log."""

    header: BatchHeader
    data: bytes


def batch(data: bytes) -> Batch:
    return Batch(parse_header(data), data)


class Appended(NamedTuple):
    batch: Batch


class Truncated(NamedTuple):
    """Everything from `offset` on was dropped, the whole batch when it is in the middle of one."""

    offset: int


class BegunAnew(NamedTuple):
    """Everything was dropped; the next record gets `offset`."""

    offset: int


class StartMoved(NamedTuple):
    offset: int


class Flushed(NamedTuple):
    """Everything before `offset` is on the disk."""

    offset: int


class StartKept(NamedTuple):
    """The log start offset is on the disk."""

    offset: int


What: TypeAlias = Appended | Truncated | BegunAnew | StartMoved | Flushed | StartKept


class Step(NamedTuple):
    """`what` was begun after `begin` entries of the disk's journal and over after `end`."""

    begin: int
    end: int
    what: What


@dataclass(frozen=True)
class State:
    """A log as it was meant to be.

    `flushed`: the end of what no crash takes away; `start_kept`: the start that none takes back.
    """

    content: tuple[Batch, ...] = ()
    start: int = 0
    end: int = 0
    flushed: int = 0
    start_kept: int = 0

    def after(self, what: What) -> "State":
        match what:
            case Appended(appended):
                return replace(self, content=(*self.content, appended), end=appended.header.next_offset)
            case Truncated(offset):
                kept = tuple(each for each in self.content if each.header.last_offset < offset)
                cut = next((each.header.base_offset for each in self.content[len(kept) :]), self.end)
                end = min(cut, offset)
                return replace(
                    self,
                    content=kept,
                    end=end,
                    flushed=min(self.flushed, end),
                    start=min(self.start, end),
                    start_kept=min(self.start_kept, end),
                )
            case BegunAnew(offset):
                return State(start=offset, end=offset, flushed=offset)
            case StartMoved(offset):
                return replace(self, start=max(self.start, offset))
            case Flushed(offset):
                return replace(self, flushed=max(self.flushed, offset))
            case StartKept(offset):
                return replace(self, start_kept=offset)


@dataclass
class Expected:
    """What recovery may find: a run of batches of `before` or `after`, which differ where a step was under way."""

    before: State
    after: State
    under_way: What | None

    @property
    def flushed(self) -> int:
        """The log ends here or behind it, even if the power failed."""
        if isinstance(self.under_way, BegunAnew):
            return 0
        return min(self.before.flushed, self.after.flushed)

    @property
    def written(self) -> int:
        """The log ends here or behind it, if the kernel lived on."""
        if isinstance(self.under_way, BegunAnew):
            return 0
        return min(self.before.end, self.after.end)

    @property
    def start_kept(self) -> int:
        """The log starts here or behind it."""
        if isinstance(self.under_way, BegunAnew):
            return 0
        return min(self.before.start_kept, self.after.start_kept)


@dataclass
class Story:
    """One partition of one topic id: how it was, and what was done since."""

    topic_id: UUID
    compacted: bool
    beginning: State = field(default_factory=State)
    steps: list[Step] = field(default_factory=list)

    def at(self, point: int, *, torn: bool = False) -> Expected:
        """What may be found when `point` entries of the journal are done, and perhaps a part of the next."""
        state = self.beginning
        for step in self.steps:
            if step.end > point:
                if step.begin < point + torn:
                    return Expected(state, state.after(step.what), step.what)
                break
            state = state.after(step.what)
        return Expected(state, state, None)

    @property
    def now(self) -> State:
        return self.at(1 << 62).before

    def forget_after(self, point: int) -> None:
        """A crash at `point`: what was to come did not come."""
        self.steps = [each for each in self.steps if each.end <= point]
