"""Move partitions between log directories while they are served (KIP-113). `log_move` implements the steps.

Moves to the same directory run one at a time. A restart aborts all moves.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.clock import now_ms
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.storage.dirs.log_move import LogMove

log = logging.getLogger(__name__)


class LogMover:
    """Moves partitions. `moves` contains the running and waiting moves. The first move imports `log_move`."""

    def __init__(
        self,
        replicas: ReplicaManager,
        loop: asyncio.AbstractEventLoop,
        *,
        bytes_per_second: Callable[[], float],
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._bytes_per_second = bytes_per_second
        self._threads: ThreadPoolExecutor | None = None
        self._turns: dict[Path, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.moves: dict[TopicPartition, LogMove] = {}

    def move(self, topic: str, index: int, path: Path) -> None:
        """Start to move a partition to the log directory `path`, and abort a move to another directory.

        A partition that this broker does not have yet will be created there. Raises KafkaError: log_dir_not_found,
        kafka_storage_error (offline), unknown_topic_or_partition, replica_not_available (not on this broker yet),
        invalid_topic_exception (the topic name is too long for the name of the copy).
        """
        topic_partition = TopicPartition(topic, index)
        log_dirs = self._replicas.log_dirs
        if path in log_dirs.owned.offline:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{path} is offline: {log_dirs.owned.offline[path]}")
        if path not in log_dirs.directories:
            raise KafkaError(ErrorCode.log_dir_not_found, f"{path} is not one of this broker's log.dirs")
        current = self.moves.get(topic_partition)
        if current is not None:
            if current.target == path:
                return
            current.abort_reason = f"a move to {path} was requested"
            del self.moves[topic_partition]
        try:
            partition = self._replicas.readable(topic, index)
        except KafkaError as error:
            if error.code in (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower):
                log_dirs.prefer(topic_partition, path)
            if error.code is ErrorCode.not_leader_or_follower:
                # As in Kafka, whose reassignment tool retries after assigning the partition to this broker.
                raise KafkaError(
                    ErrorCode.replica_not_available, f"this broker does not have {topic_partition} yet"
                ) from error
            raise
        if partition.log.directory.parent == path:
            return
        from headrace.storage.dirs.log_move import LogMove

        move = self.moves[topic_partition] = LogMove(partition.log, partition.topic_id, path)
        task = self._loop.create_task(self._run(move))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for move in self.moves.values():
            move.abort_reason = "the broker is stopping"
        await asyncio.gather(*self._tasks)
        if self._threads is not None:
            self._threads.shutdown()

    async def _run(self, move: "LogMove") -> None:
        from headrace.storage.dirs.log_move import MoveAbortedError, MoveFailedError

        moved = move.log
        source = moved.directory.parent
        switched = False
        try:
            async with self._turns.setdefault(move.target, asyncio.Lock()):
                moved.is_moving = True
                await self._copy(move)
                switched = True
                await self._finish(move)
            log.info("%s has moved from %s to %s", moved.topic_partition, source, move.target)
        except MoveAbortedError as error:
            log.info("Stopped moving %s from %s to %s: %s", moved.topic_partition, source, move.target, error)
        except MoveFailedError as error:
            _log_failure(move, source, error, switched=switched)
            self._replicas.log_dirs.note_failure(error.directory, error.error)
        except (KafkaError, OSError) as error:
            _log_failure(move, source, error, switched=switched)
        finally:
            if self.moves.get(moved.topic_partition) is move:
                del self.moves[moved.topic_partition]
            moved.is_moving = moved.topic_partition in self.moves
            if not switched:
                await self._in_thread(move.discard)

    async def _copy(self, move: "LogMove") -> None:
        from headrace.storage.dirs import log_switch
        from headrace.storage.dirs.log_move import MoveAbortedError

        log_dirs = self._replicas.log_dirs
        if move.abort_reason:
            raise MoveAbortedError(move.abort_reason)
        await self._in_thread(move.prepare)
        while True:
            await self._in_thread(partial(move.copy, move.plan(), self._bytes_per_second))
            high_watermark = self._replicas.readable(*move.log.topic_partition).high_watermark
            await self._in_thread(partial(log_switch.prepare, log_dirs, move, high_watermark))
            if log_switch.switch(log_dirs, move):
                return

    async def _finish(self, move: "LogMove") -> None:
        from headrace.storage.dirs import log_switch

        await self._in_thread(move.log.flusher.sync_switch)
        log_switch.finish(self._replicas.log_dirs, move, now_ms())
        await self._in_thread(self._replicas.log_dirs.sync_names)
        await self._in_thread(self._replicas.checkpoint)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                max(1, len(self._replicas.log_dirs.directories)), thread_name_prefix="headrace-mover"
            )
        await self._loop.run_in_executor(self._threads, work)


def _log_failure(move: "LogMove", source: Path, error: Exception, *, switched: bool) -> None:
    if switched:
        text = "Completing the move of %s from %s to %s failed: %s. The copy is in use; a restart completes the move"
    else:
        text = (
            "Moving %s from %s to %s failed: %s. It stays in the old directory: correct the cause, then request the"
            " move again"
        )
    log.error(text, move.log.topic_partition, source, move.target, error)
