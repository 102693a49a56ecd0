"""The changes made to a partition, and the states it may have after a crash at any point."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID

from headrace.wire.batch import BatchHeader, parse_header


class Batch(NamedTuple):
    header: BatchHeader
    data: bytes


def batch(data: bytes) -> Batch:
    return Batch(parse_header(data), data)


class Appended(NamedTuple):
    batch: Batch


class Fetched(NamedTuple):
    """A follower appended batches from its leader; some of them survive a crash."""

    batches: tuple[Batch, ...]


class Truncated(NamedTuple):
    """The batch with `offset` and all later ones were dropped."""

    offset: int


class Emptied(NamedTuple):
    """All batches were dropped; the next record gets `offset`."""

    offset: int


class StartMoved(NamedTuple):
    offset: int


class Flushed(NamedTuple):
    """The records before `offset` are synced."""

    offset: int


class StartKept(NamedTuple):
    """The log start offset is synced."""

    offset: int


class HighWatermarkKept(NamedTuple):
    """The high watermark is synced."""

    offset: int


Action: TypeAlias = Appended | Fetched | Truncated | Emptied | StartMoved | Flushed | StartKept | HighWatermarkKept


class Step(NamedTuple):
    """`action` ran between the entries `begin` and `end` of the disk's journal."""

    begin: int
    end: int
    action: Action


@dataclass(frozen=True)
class State:
    """The intended state of a log.

    No crash loses records before `flushed` or moves the log start below `start_kept`.
    """

    content: tuple[Batch, ...] = ()
    start: int = 0
    end: int = 0
    flushed: int = 0
    start_kept: int = 0
    high_watermarks: frozenset[int] = frozenset({0})
    """All that were ever saved."""

    def after(self, action: Action) -> "State":
        match action:
            case Appended(appended):
                return replace(self, content=(*self.content, appended), end=appended.header.next_offset)
            case Fetched(batches):
                return replace(self, content=(*self.content, *batches), end=batches[-1].header.next_offset)
            case Truncated(offset):
                kept = tuple(item for item in self.content if item.header.last_offset < offset)
                cut = next((item.header.base_offset for item in self.content[len(kept) :]), self.end)
                end = min(cut, offset)
                return replace(
                    self,
                    content=kept,
                    end=end,
                    flushed=min(self.flushed, end),
                    start=min(self.start, end),
                    start_kept=min(self.start_kept, end),
                )
            case Emptied(offset):
                return State(start=offset, end=offset, flushed=offset, high_watermarks=self.high_watermarks)
            case StartMoved(offset):
                return replace(self, start=max(self.start, offset))
            case Flushed(offset):
                return replace(self, flushed=max(self.flushed, offset))
            case StartKept(offset):
                return replace(self, start_kept=offset)
            case HighWatermarkKept(offset):
                return replace(self, high_watermarks=self.high_watermarks | {offset})


@dataclass
class Expected:
    """The states that recovery may find: `before` or `after` the step under way, if any."""

    before: State
    after: State
    under_way: Action | None

    @property
    def flushed(self) -> int:
        """The minimum log end offset after a power loss."""
        if isinstance(self.under_way, Emptied):
            return 0
        return min(self.before.flushed, self.after.flushed)

    @property
    def written(self) -> int:
        """The minimum log end offset after the death of the process."""
        if isinstance(self.under_way, Emptied):
            return 0
        return min(self.before.end, self.after.end)

    @property
    def start_kept(self) -> int:
        """The minimum log start offset."""
        if isinstance(self.under_way, Emptied):
            return 0
        return min(self.before.start_kept, self.after.start_kept)


@dataclass
class Story:
    """The initial state of a partition and the steps since."""

    topic_id: UUID
    compacted: bool
    beginning: State = field(default_factory=State)
    steps: list[Step] = field(default_factory=list)

    def at(self, point: int, *, torn: bool = False) -> Expected:
        """Return the possible states after `point` entries of the journal and, if `torn`, part of the next."""
        state = self.beginning
        for step in self.steps:
            if step.end > point:
                if step.begin < point + torn:
                    return Expected(state, state.after(step.action), step.action)
                break
            state = state.after(step.action)
        return Expected(state, state, None)

    def high_watermarks_at(self, point: int) -> frozenset[int]:
        """Return the high watermarks that may be saved after `point` entries of the journal."""
        begun = {
            step.action.offset
            for step in self.steps
            if step.begin <= point and isinstance(step.action, HighWatermarkKept)
        }
        return self.beginning.high_watermarks | begun

    @property
    def now(self) -> State:
        return self.at(1 << 62).before
