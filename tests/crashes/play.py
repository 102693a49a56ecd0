"""One seed: consecutive lives of a broker's storage, and crashes at random points of each."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from headrace.storage.dirs import log_dir
from headrace.types import TopicPartition
from tests.crashes.checks import check, check_high_watermark
from tests.crashes.disk import Disk, Files, Write, put, record
from tests.crashes.faults import Fault
from tests.crashes.story import Emptied, State, Story, Truncated
from tests.crashes.world import World, unlock

POINTS: Final = 14
"""Crashes per life; the next life continues from the last."""
LIVES: Final = 4


class Play:
    """A run of one seed in the directory `root`."""

    def __init__(self, seed: int, root: Path) -> None:
        self.seed = seed
        self.crashes = 0
        self._root = root
        self._random = Random(seed)
        self._world = World(self._random)
        self._disk = Disk({})
        self._boot = root / "boot"
        self._boots = 0

    @classmethod
    def run_seed(cls, seed: int, *faults: Fault) -> int:
        """Play a seed with `faults` in the storage code and return the number of crashes. Raises as `run` does."""
        memory = Path("/dev/shm")
        root = Path(tempfile.mkdtemp(prefix="headrace-crashes-", dir=memory if memory.is_dir() else None))
        try:
            with pytest.MonkeyPatch.context() as patch:
                for fault in faults:
                    fault(patch)
                play = cls(seed, root)
                play.run()
            return play.crashes
        finally:
            shutil.rmtree(root)

    def run(self) -> None:
        """Play all lives. Raises AssertionError, with a note of seed and point, if recovery breaks a promise."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_dir, "_BOOT_ID", self._boot)
            files: Files = {}
            for life in range(LIVES):
                files = self._live(life, files)

    def _live(self, life: int, files: Files) -> Files:
        """Play one life and return the files of the next."""
        live = self._root / "live"
        put(files, live)
        self._boot.write_text(f"boot {self._boots}")
        first = len(self._disk.journal)
        with record(self._disk, live):
            self._world.live(live, self._disk, self._random.randint(5, 40))
        shutil.rmtree(live)
        for place in range(POINTS):
            last = self._random.choice((len(self._disk.journal), len(self._disk.journal), self._world.started_at))
            point = self._random.randint(first, last)
            power_loss = self._random.random() < 0.7 or (place == POINTS - 1 and self._is_truncating(point))
            torn = None if power_loss else self._disk.torn_at(point, self._random)
            left, found = self._crash(life, point, torn, power_loss=power_loss)
        if power_loss:
            self._disk = Disk(left)
            self._boots += 1
        else:
            self._disk.rewind(point, torn)
        for story, state in found.values():
            story.beginning, story.steps = state, []
        self._world.stories = {topic_partition: story for topic_partition, (story, _) in found.items()}
        return left

    def _is_truncating(self, point: int) -> bool:
        """Return True if batches are being dropped at `point`: a power loss in the next life could bring them back."""
        stories = self._world.stories_at(point).values()
        return any(isinstance(story.at(point).under_way, Emptied | Truncated) for story in stories)

    def _crash(
        self, life: int, point: int, torn: Write | None, *, power_loss: bool
    ) -> tuple[Files, dict[TopicPartition, tuple[Story, State]]]:
        """Return the files left by a crash at `point`, and the stories and states after a start."""
        self.crashes += 1
        left = (
            self._disk.after_power_loss(point, self._random)
            if power_loss
            else self._disk.after_process_death(point, torn)
        )
        look = self._root / "look"
        put(left, look)
        self._boot.write_text(f"boot {self._boots + power_loss}")
        stories = self._world.stories_at(point)
        found = {}
        topic_partition: TopicPartition | None = None
        try:
            with record(Disk(left), look):
                replicas = self._world.start(look, stories)
                try:
                    for topic_partition, story in stories.items():
                        partition = replicas.get(*topic_partition)
                        expected = story.at(point, torn=torn is not None)
                        state = check(partition, story, expected, kernel_survived=not power_loss)
                        kept = check_high_watermark(
                            replicas.log_dirs.high_watermark(topic_partition), story.high_watermarks_at(point)
                        )
                        found[topic_partition] = story, replace(state, high_watermarks=kept)
                finally:
                    unlock(replicas.log_dirs)
        except Exception as error:
            crash = "power loss" if power_loss else "process death"
            error.add_note(
                f"{topic_partition}: seed {self.seed}, life {life}, {crash} at {point} of {len(self._disk.journal)}"
            )
            raise
        shutil.rmtree(look)
        return left, found
