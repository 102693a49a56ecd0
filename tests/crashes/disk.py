"""A disk that loses unsynced data, under the real storage code.

`record` journals every change made through the `os` module below a directory. `after_power_loss` then returns files
that a disk may hold if the power fails at a point of the journal:

- Since a file's last fsync, any sector may be in any of its states, and the file may have any of its sizes: writes are
  lost, torn and reordered, and files grow by zeros.
- Since a directory's last fsync, a prefix of its changes (creations, renames, removals) survives, as in journaling file
  systems. Directories and files are independent of each other.
- An fsync of a file does not keep its name.

`after_process_death` returns the kernel's view: every write, the last one perhaps torn.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest

SECTOR: Final = 512
ROOT: Final = 0
_RECORDED: Final = (
    "open",
    "close",
    "write",
    "pwrite",
    "pwritev",
    "ftruncate",
    "truncate",
    "posix_fallocate",
    "rename",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
)


class Write(NamedTuple):
    file: int
    position: int
    data: bytes


class Resize(NamedTuple):
    file: int
    size: int


class Sync(NamedTuple):
    target: int


class Names(NamedTuple):
    """A change in a directory: the new target by name, None for a removed name."""

    directory: int
    changes: tuple[tuple[str, int | None], ...]


Entry = Write | Resize | Sync | Names
Files = dict[str, bytes | None]
"""Content by path; None for a directory. Directories precede their files."""


@dataclass
class _File:
    """A file's states since its last fsync, oldest first."""

    states: list[bytes] = field(default_factory=lambda: [b""])


@dataclass
class _Directory:
    names: dict[str, int] = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)


class Disk:
    """A disk's initial files and the journal of changes."""

    def __init__(self, files: Files) -> None:
        """Start with `files`, all synced."""
        self._initial: dict[int, bytes] = {}
        self._initial_names: dict[int, dict[str, int]] = {ROOT: {}}
        self.tree: dict[int, dict[str, int]] = {ROOT: {}}
        """The directories as the running process sees them."""
        self.journal: list[Entry] = []
        self._count = 0
        for path, content in files.items():
            parent, name = self.place(path)
            created = self.new(is_directory=content is None)
            self.tree[parent][name] = created
            if content is not None:
                self._initial[created] = content
        self._initial_names = {directory: dict(names) for directory, names in self.tree.items()}

    def new(self, *, is_directory: bool) -> int:
        self._count += 1
        if is_directory:
            self.tree[self._count] = {}
        return self._count

    def place(self, path: str) -> tuple[int, str]:
        """Return the directory and name of a path below the root."""
        *parents, name = path.split("/")
        directory = ROOT
        for parent in parents:
            directory = self.tree[directory][parent]
        return directory, name

    def find(self, path: str) -> int:
        if not path:
            return ROOT
        directory, name = self.place(path)
        return self.tree[directory][name]

    def rename_at(self, directory: int, *changes: tuple[str, int | None]) -> None:
        for name, target in changes:
            if target is None:
                self.tree[directory].pop(name)
            else:
                self.tree[directory][name] = target
        self.journal.append(Names(directory, changes))

    # -- after a crash -------------------------------------------------------------------------------------------------

    def after_power_loss(self, point: int, random: Random) -> Files:
        """Return what survives of the first `point` entries of the journal."""
        files, directories = self._replay(point)
        names = {each: _survivors(directory, random) for each, directory in directories.items()}
        return self._listing(files, names, lambda file: _torn(file.states, random))

    def torn_at(self, point: int, random: Random) -> Write | None:
        """Return the part of entry `point` that is written if the process dies during it, or None."""
        entry = self.journal[point] if point < len(self.journal) else None
        if not isinstance(entry, Write) or random.random() < 0.5:
            return None
        return Write(entry.file, entry.position, entry.data[: random.randrange(len(entry.data) + 1)])

    def after_process_death(self, point: int, torn: Write | None) -> Files:
        """Return the kernel's files after the first `point` entries of the journal and `torn`."""
        files, directories = self._replay(point)
        if torn is not None:
            _apply(files, torn)
        return self._listing(files, _seen(directories), lambda file: file.states[-1])

    def rewind(self, point: int, torn: Write | None) -> None:
        """Forget the entries after `point`, before the next process runs."""
        self.tree = _seen(self._replay(point)[1])
        self.journal[point:] = [] if torn is None else [torn]

    def _replay(self, point: int) -> tuple[dict[int, _File], dict[int, _Directory]]:
        files = {each: _File([content]) for each, content in self._initial.items()}
        directories = {each: _Directory(dict(names)) for each, names in self._initial_names.items()}
        for entry in self.journal[:point]:
            if isinstance(entry, Names):
                directory = directories.setdefault(entry.directory, _Directory())
                directory.pending.append(entry)
                for _, target in entry.changes:
                    if target in self.tree and target is not None:
                        directories.setdefault(target, _Directory())
            elif isinstance(entry, Sync):
                if entry.target in directories:
                    directory = directories[entry.target]
                    directory.names = _with_changes(directory.names, directory.pending)
                    directory.pending.clear()
                else:
                    file = files.setdefault(entry.target, _File())
                    del file.states[:-1]
            else:
                _apply(files, entry)
        return files, directories

    def _listing(
        self, files: dict[int, _File], names: dict[int, dict[str, int]], content: Callable[[_File], bytes]
    ) -> Files:
        found: Files = {}

        def walk(directory: int, prefix: str) -> None:
            for name, target in names.get(directory, {}).items():
                path = prefix + name
                if target in self.tree or target in names:
                    found[path] = None
                    walk(target, path + "/")
                else:
                    found[path] = content(files.get(target, _File()))

        walk(ROOT, "")
        return found


def _apply(files: dict[int, _File], entry: Write | Resize) -> None:
    file = files.setdefault(entry.file, _File())
    before = file.states[-1]
    if isinstance(entry, Resize):
        file.states.append(before[: entry.size].ljust(entry.size, b"\0"))
    else:
        end = entry.position + len(entry.data)
        file.states.append(before[: entry.position].ljust(entry.position, b"\0") + entry.data + before[end:])


def _with_changes(names: dict[str, int], steps: list[Names]) -> dict[str, int]:
    result = dict(names)
    for step in steps:
        for name, target in step.changes:
            if target is None:
                result.pop(name, None)
            else:
                result[name] = target
    return result


def _seen(directories: dict[int, _Directory]) -> dict[int, dict[str, int]]:
    return {each: _with_changes(directory.names, directory.pending) for each, directory in directories.items()}


def _survivors(directory: _Directory, random: Random) -> dict[str, int]:
    pending = directory.pending
    kept = random.choice((0, len(pending), random.randint(0, len(pending))))
    return _with_changes(directory.names, pending[:kept])


def _torn(states: list[bytes], random: Random) -> bytes:
    """Return a possible content of a file that had `states` since its last fsync."""
    last = len(states) - 1
    if not last:
        return states[0]
    fate = random.random()
    if fate < 0.2:
        return states[0]
    if fate < 0.4:
        return states[last]
    if fate < 0.6:
        return states[random.randint(0, last)]
    size = len(states[random.choice((0, last, last, random.randint(0, last)))])
    sectors = []
    for position in range(0, size, SECTOR):
        state = states[random.choice((0, last, last, random.randint(0, last)))]
        sectors.append(state[position : position + SECTOR].ljust(SECTOR, b"\0"))
    return b"".join(sectors)[:size]


def put(files: Files, directory: Path) -> None:
    """Create `directory` with `files`."""
    directory.mkdir(parents=True)
    base = f"{directory}/"
    for path, content in files.items():
        if content is None:
            Path(base + path).mkdir()
        else:
            descriptor = os.open(base + path, os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, content)
            os.close(descriptor)


@contextmanager
def record(disk: Disk, root: Path) -> Iterator[None]:
    """Journal the changes below `root`, which holds the disk's files. Nothing is synced to the real disk.

    Several disks may be recorded at the same time.
    """
    with pytest.MonkeyPatch.context() as patch:
        _Recorder(disk, str(root)).install(patch)
        yield


class _Recorder:
    """Wraps the functions of `os` that change files."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._prefix = root + "/"
        self._open_files: dict[int, tuple[int, int]] = {}
        """File number and position by descriptor."""
        self._other: _Recorder | None = None
        """The recorder of another disk."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in _RECORDED:
            if hasattr(os, name):
                original = getattr(os, name)
                patch.setattr(os, name, self._wrapped(getattr(self, f"_{name}"), original))
        before = getattr(os.fsync, "__self__", None)
        if isinstance(before, _Recorder):
            self._other = before
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr("headrace.storage.files.atomic_file.fdatasync", self._fsync)
        patch.setattr("headrace.storage.files.log_file.fdatasync", self._fsync)

    @staticmethod
    def _wrapped(spy: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            return spy(original, *args, **options)

        return wrapper

    def _below(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the path relative to the root, or None if it is elsewhere."""
        text = os.fspath(path)
        if text == self._root:
            return ""
        return text[len(self._prefix) :] if text.startswith(self._prefix) else None

    def _spot(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """Return the directory and name, or None if the path is not below the root."""
        if dir_fd is not None:
            known = self._open_files.get(dir_fd)
            return None if known is None else (known[0], os.fspath(path))
        below = self._below(path)
        return None if below is None or not below else self._disk.place(below)

    # -- the system calls ----------------------------------------------------------------------------------------------

    def _open(self, original: Callable[..., int], path: Any, flags: int, *args: Any, **options: Any) -> int:
        descriptor = original(path, flags, *args, **options)
        self._open_files.pop(descriptor, None)
        if os.fspath(path) == self._root:
            self._open_files[descriptor] = (ROOT, 0)
            return descriptor
        spot = self._spot(path, options.get("dir_fd"))
        if spot is not None:
            directory, name = spot
            disk = self._disk
            found = disk.tree[directory].get(name)
            if found is None:
                found = disk.new(is_directory=False)
                disk.rename_at(directory, (name, found))
            elif flags & os.O_TRUNC:
                disk.journal.append(Resize(found, 0))
            self._open_files[descriptor] = (found, 0)
        return descriptor

    def _close(self, original: Callable[[int], None], descriptor: int) -> None:
        self._open_files.pop(descriptor, None)
        original(descriptor)

    def _wrote(self, descriptor: int, position: int, data: bytes) -> None:
        known = self._open_files.get(descriptor)
        if known is not None and data:
            self._disk.journal.append(Write(known[0], position, data))

    def _write(self, original: Callable[..., int], descriptor: int, data: Any) -> int:
        written = original(descriptor, data)
        position = os.lseek(descriptor, 0, os.SEEK_CUR) - written if descriptor in self._open_files else 0
        self._wrote(descriptor, position, bytes(data)[:written])
        return written

    def _pwrite(self, original: Callable[..., int], descriptor: int, data: Any, position: int) -> int:
        written = original(descriptor, data, position)
        self._wrote(descriptor, position, bytes(data)[:written])
        return written

    def _pwritev(self, original: Callable[..., int], descriptor: int, buffers: Any, position: int) -> int:
        written = original(descriptor, buffers, position)
        self._wrote(descriptor, position, b"".join(buffers)[:written])
        return written

    def _ftruncate(self, original: Callable[..., None], descriptor: int, size: int) -> None:
        original(descriptor, size)
        known = self._open_files.get(descriptor)
        if known is not None:
            self._disk.journal.append(Resize(known[0], size))

    def _truncate(self, original: Callable[..., None], path: Any, size: int) -> None:
        original(path, size)
        below = self._below(path)
        if below is not None:
            self._disk.journal.append(Resize(self._disk.find(below), size))

    def _posix_fallocate(self, original: Callable[..., None], descriptor: int, offset: int, size: int) -> None:
        original(descriptor, offset, size)
        known = self._open_files.get(descriptor)
        if known is not None:
            self._disk.journal.append(Resize(known[0], offset + size))

    def _rename(self, original: Callable[..., None], source: Any, target: Any) -> None:
        original(source, target)
        old, new = self._spot(source), self._spot(target)
        if old is not None and new is not None:
            assert old[0] == new[0], "renames between directories are not supported"
            moved = self._disk.tree[old[0]][old[1]]
            self._disk.rename_at(old[0], (old[1], None), (new[1], moved))

    _replace = _rename

    def _unlink(self, original: Callable[..., None], path: Any, *, dir_fd: int | None = None) -> None:
        original(path, dir_fd=dir_fd)
        spot = self._spot(path, dir_fd)
        # copies of damaged files are not in the journal: they are written without `os`
        if spot is not None and spot[1] in self._disk.tree[spot[0]]:
            self._disk.rename_at(spot[0], (spot[1], None))

    _rmdir = _unlink

    def _mkdir(self, original: Callable[..., None], path: Any, *args: Any, **options: Any) -> None:
        original(path, *args, **options)
        spot = self._spot(path)
        if spot is not None:
            self._disk.rename_at(spot[0], (spot[1], self._disk.new(is_directory=True)))

    def _fsync(self, descriptor: int) -> None:
        known = self._open_files.get(descriptor)
        if known is not None:
            self._disk.journal.append(Sync(known[0]))
        elif self._other is not None:
            self._other._fsync(descriptor)
