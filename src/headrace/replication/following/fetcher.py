"""Copies partitions from one leader over one connection: fetch, append, truncate. A thin shell of `follower_state`."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from headrace.client.link import Link, LinkError
from headrace.clock import Clock
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.following.fetched_batches import UnexpectedOffsetError
from headrace.replication.following.fetcher_settings import FetcherSettings, Reports
from headrace.replication.following.follower_state import (
    Action,
    Append,
    Fail,
    FollowerState,
    Following,
    Reset,
    Retry,
    Truncate,
    name_of,
)
from headrace.replication.following.leader_offsets import OffsetsRefusedError, leader_offset
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.producer_recovery import RecoveredProducers
from headrace.replication.throttle import ReplicationThrottle
from headrace.slices import finish
from headrace.storage.files.disk_failures import may_pass
from headrace.types import Buffer, TopicPartition
from headrace.wire.apis import ApiKey
from headrace.wire.fetched import (
    FetchedPartition,
    FetchReply,
    MalformedReplyError,
    encode_fetch,
    parse_fetch_reply,
)

_SLICE_BYTES: Final = 1024 * 1024
"""Maximum bytes to append before the event loop may run other work."""
_LOG_INTERVAL_S: Final = 10.0
"""Minimum interval between log lines about a failure that lasts: of the leader, or of a partition."""

log = logging.getLogger(__name__)


class Fetcher:
    """Fetches from one leader, in a task that `start` begins. Use it on the event loop only."""

    def __init__(
        self, link: Link, settings: FetcherSettings, reports: Reports, throttle: ReplicationThrottle, clock: Clock
    ) -> None:
        self._link = link
        self._settings = settings
        self._reports = reports
        self._throttle = throttle
        self._clock = clock
        self._state = FollowerState(partition_max_bytes=settings.partition_max_bytes, backoff_s=settings.backoff_s)
        self._partitions: dict[TopicPartition, FollowedPartition] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._handed: asyncio.Future[tuple[FetchReply, list[Action], list[FollowedPartition]]]
        """Done when the task must handle a reply: the reply, its remaining actions, and the partitions to flush."""
        self._log_again_at: dict[TopicPartition | None, float] = {}
        """When to log again about a failing partition, or about the leader (None)."""
        self.requests = 0
        self.fetched_bytes = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._link.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def follow(self, partitions: Iterable[FollowedPartition]) -> None:
        """Start fetching these partitions under their current leader epochs."""
        for partition in partitions:
            topic_partition = partition.topic_partition
            failure = partition.log.flusher.flush_failure
            if failure is not None:  # to the leader, the first fetch would mean that the records are on disk
                self._fail(partition, failure)
                continue
            end = partition.log_end()
            if end.last_epoch < 0 and partition.high_watermark < end.offset:
                # Without leader epochs, only the committed part is known to match the leader's log.
                if not self._safely(partition, partial(partition.truncate_to, partition.high_watermark)):
                    continue
                end = partition.log_end()
            self._partitions[topic_partition] = partition
            self._state.follow(topic_partition, partition.topic_id.bytes, partition.leader_epoch, end)
        self._news.set()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. Nothing is appended to their logs after this."""
        for topic_partition in partitions:
            self._state.forget(topic_partition)
            self._partitions.pop(topic_partition, None)
            self._log_again_at.pop(topic_partition, None)

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to fetch."""
        return not self._partitions

    def lags(self) -> Iterable[tuple[TopicPartition, int]]:
        """Yield the lag in records of every partition that had a reply."""
        for following in self._state.partitions():
            if following.lag is not None:
                yield following.topic_partition, following.lag

    # The task

    async def _run(self) -> None:
        while True:
            try:
                await self._step()
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("Unexpected error in a fetcher, which starts again (this is a bug, please report it)")
                self._begin_again()

    def _begin_again(self) -> None:
        """Fetch all partitions from their log end offsets, after the back-off."""
        now = self._clock.monotonic()
        self._state.lost(now)
        for following in self._state.partitions():
            self._state.failed(following, self._partitions[following.topic_partition].log_end(), now)

    async def _step(self) -> None:
        """Fetch once, or wait until there is something to fetch."""
        body = self._next_request()
        if body is None:
            await self._wait(self._clock.monotonic())
            return
        version = self._settings.fetch_version
        to_flush: list[FollowedPartition] = []
        try:
            if self._link.is_ready:
                handed = self._handed = asyncio.get_running_loop().create_future()
                self._link.ask(ApiKey.FETCH, version, body, self._answered)
                reply, actions, to_flush = await handed
            else:
                reply, actions = self._parsed(await self._link.exchange(ApiKey.FETCH, version, body))
        except (LinkError, MalformedReplyError) as error:
            self._log(
                None,
                logging.WARNING,
                "Fetching from %s failed; trying again every %g s: %s",
                self._leader,
                self._settings.backoff_s,
                error,
            )
            self._state.lost(self._clock.monotonic())
            return
        self._log_again_at.pop(None, None)
        await self._process(reply, actions, to_flush)

    def _next_request(self) -> Buffer | None:
        """Return the body of the next request; None if no partition can be fetched now."""
        now = self._clock.monotonic()
        over = self._throttle.is_throttled if self._throttle.is_exceeded(now) else None
        request = self._state.request(now, over)
        if request is None:
            return None
        settings = self._settings
        replica = (settings.replica_id, settings.replica_epoch()) if settings.replica_id >= 0 else None
        self.requests += 1
        return encode_fetch(
            settings.limits, request.session, request.entries, request.forgotten, replica, settings.fetch_version
        )

    def _parsed(self, body: memoryview) -> tuple[FetchReply, list[Action]]:
        """Parse a reply, and return it with the actions that it requires. Raises MalformedReplyError."""
        reply = parse_fetch_reply(body)
        return reply, self._state.answered(reply, self._clock.monotonic())

    def _answered(self, result: memoryview | LinkError) -> None:
        """Append the records of a usual reply and send the next request at once; leave everything else to the task.

        Producers with acks=all wait for that request, which the task would send in a later iteration of the event loop.
        """
        handed = self._handed
        if handed.done():
            return  # closed
        try:
            if isinstance(result, LinkError):
                raise result
            reply, actions = self._parsed(result)
            is_usual = not reply.error_code and len(result) <= _SLICE_BYTES
            if not is_usual or not all(isinstance(action, Append) for action in actions):
                handed.set_result((reply, actions, []))
                return
            to_flush = self._append_all(actions)
            body = self._next_request() if not to_flush and self._link.is_ready else None
            if body is None:
                handed.set_result((reply, [], to_flush))
                return
            self._log_again_at.pop(None, None)
            self._link.ask(ApiKey.FETCH, self._settings.fetch_version, body, self._answered)
        except Exception as error:  # noqa: BLE001  the task handles it
            handed.set_exception(error)

    def _append_all(self, actions: Iterable[Action]) -> list[FollowedPartition]:
        """Append the records of all actions that are `Append`. Return the partitions to flush before the next fetch."""
        to_flush = []
        for action in actions:
            partition = self._partitions.get(action.following.topic_partition)
            if partition is not None and isinstance(action, Append):
                self._append(partition, action.following, action.fetched)
                if partition.needs_flush:
                    to_flush.append(partition)
        return to_flush

    @property
    def _leader(self) -> str:
        """The leader's name for the log."""
        leader = next((partition.leader for partition in self._partitions.values()), None)
        return "a leader" if leader is None else f"broker {leader}"

    def _log(self, failing: TopicPartition | None, level: int, message: str, *arguments: object) -> None:
        """Log a failure of a partition, or of the leader (None), unless the last line about it is recent."""
        now = self._clock.monotonic()
        if now >= self._log_again_at.get(failing, now):
            self._log_again_at[failing] = now + _LOG_INTERVAL_S
            log.log(level, message, *arguments)

    async def _wait(self, now: float) -> None:
        """Wait until partitions are added or the next back-off is over."""
        due = self._state.next_retry()
        wait_s = self._settings.backoff_s if len(self._state) else None
        if due is not None:
            wait_s = max(0.0, due - now)
        self._news.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _process(self, reply: FetchReply, actions: list[Action], to_flush: list[FollowedPartition]) -> None:
        if reply.error_code:
            log.info("Starting a new fetch session with %s, which answered %s", self._leader, name_of(reply.error_code))
            if reply.error_code != ErrorCode.fetch_session_id_not_found:
                await asyncio.sleep(self._settings.backoff_s)
        unyielded = 0
        changes: list[Truncate | Reset] = []
        for action in actions:
            if unyielded >= _SLICE_BYTES:
                unyielded = 0
                await asyncio.sleep(0)
            partition = self._partitions.get(action.following.topic_partition)
            if partition is None or not self._is_due(action):
                continue  # removed, or followed under a new epoch, during a pause
            if isinstance(action, Append):
                unyielded += self._append(partition, action.following, action.fetched)
                if partition.needs_flush:
                    to_flush.append(partition)
            elif isinstance(action, Truncate | Reset):
                changes.append(action)
            else:
                self._handle_error(partition, action)
        if to_flush:
            for partition, reason in await self._reports.flush(to_flush):
                # To the leader, another fetch would mean that the records are on disk.
                if self._partitions.get(partition.topic_partition) is partition:
                    self._fail(partition, reason)
        for change in changes:  # last, because they may take a long time
            await self._carry_out(change)

    async def _carry_out(self, change: Truncate | Reset) -> None:
        if change.following not in self._state:
            return  # removed, or followed under a new epoch, during a pause
        if isinstance(change, Reset):
            await self._reset(change.following)
        else:
            await self._truncate(change)

    def _is_due(self, action: Action) -> bool:
        following = action.following
        if isinstance(action, Fail):
            return self._state.get(following.topic_partition) is None
        return following in self._state

    def _append(self, partition: FollowedPartition, following: Following, fetched: FetchedPartition) -> int:
        """Append the records of one partition, and return their bytes."""
        try:
            now_ms, start = self._clock.wall_ms(), fetched.log_start_offset
            appended = partition.append_fetched(fetched.records, now_ms, leader_start=start)
            partition.learn(fetched.high_watermark, fetched.log_start_offset)
        except KafkaError as error:
            if error.code is ErrorCode.unsupported_for_message_format:
                self._fail(partition, str(error))
                return 0
            # Failed directories are taken offline elsewhere; a full disk may get space again.
            name = partition.topic_partition
            self._log(name, logging.ERROR, "%s: appending fetched records failed; trying again: %s", name, error)
            self._state.failed(following, partition.log_end(), self._clock.monotonic())
            return 0
        except UnexpectedOffsetError as error:
            self._fail(partition, str(error))
            return 0
        except Exception as error:  # a defect: as in Kafka, other partitions continue
            log.exception("Appending to %s failed: this is a bug, please report it", partition.topic_partition)
            self._fail(partition, repr(error))
            return 0
        self._log_again_at.pop(partition.topic_partition, None)
        self.fetched_bytes += appended.size
        if appended.size and self._throttle.is_throttled(partition.topic_partition):
            self._throttle.record(appended.size, self._clock.monotonic())
        self._state.appended(following, partition.log_end(), fetched.high_watermark)
        return appended.size

    def _handle_error(self, partition: FollowedPartition, action: Fail | Retry) -> None:
        if isinstance(action, Fail):
            self._fail(partition, action.reason, is_expected=action.is_expected)
            return
        level, name = logging.INFO if action.is_expected else logging.ERROR, partition.topic_partition
        if action.is_expected and action.wait_s < self._settings.backoff_s:
            return  # the leader is about to receive its new epoch
        self._log(name, level, "%s: the leader returned %s; trying again", name, action.reason)

    async def _truncate(self, action: Truncate) -> None:
        """Truncate a log to the point where it diverges from the leader's."""
        following, epoch, end_offset = action
        partition = self._partitions[following.topic_partition]
        offset = partition.diverging_offset(epoch, end_offset)
        truncate = partial(partition.truncate_where_diverging, epoch, end_offset)
        if await self._truncated(partition, following, offset, truncate):
            log.info(
                "%s: truncated to offset %d, because the leader's epoch %d ends at %d",
                partition.topic_partition,
                partition.log_end_offset,
                epoch,
                end_offset,
            )
            self._state.moved(following, partition.log_end())

    async def _truncated(
        self,
        partition: FollowedPartition,
        following: Following,
        offset: int,
        truncate: Callable[[RecoveredProducers | None], object],
    ) -> bool:
        """Read the producer state before `offset` in slices, then call `truncate` with it. Return True on success.

        Do nothing if the partition is removed, becomes a leader, or follows under a new epoch between two slices.
        """
        try:
            recovered = await finish(partition.recover_before(offset))
        except Exception as error:  # noqa: BLE001  logged
            if following in self._state:
                self._change_failed(partition, error, following)
            return False
        return following in self._state and self._safely(partition, partial(truncate, recovered), following)

    async def _reset(self, following: Following) -> None:
        """Truncate or restart a log whose end is outside the leader's log, as after an unclean election (KIP-320)."""
        topic_partition = following.topic_partition
        epoch = following.leader_epoch
        try:
            latest = await self._leader_offset(topic_partition, epoch, earliest=False)
            earliest = await self._leader_offset(topic_partition, epoch, earliest=True)
        except (LinkError, OffsetsRefusedError) as error:
            if following in self._state:
                log.info("%s: the leader did not return its log's offsets; trying again: %s", topic_partition, error)
                self._state.delay(following, self._clock.monotonic())
            return
        if following not in self._state:
            return
        partition = self._partitions[topic_partition]
        end_offset = partition.log_end_offset
        if earliest <= end_offset <= latest:
            # The leader's log has changed since its reply, or the leader is wrong: do not ask in a busy loop.
            self._state.delay(following, self._clock.monotonic())
            return
        if latest < end_offset:
            is_reset = await self._truncated(partition, following, latest, partial(partition.truncate_to, latest))
        else:
            change = partial(partition.truncate_fully_and_start_at, earliest)
            is_reset = self._safely(partition, change, following)
        if is_reset:
            log.warning(
                "%s ended at offset %d, outside the leader's log (%d to %d): reset to the nearest of these offsets",
                topic_partition,
                end_offset,
                earliest,
                latest,
            )
            self._state.moved(following, partition.log_end())

    async def _leader_offset(self, topic_partition: TopicPartition, epoch: int, *, earliest: bool) -> int:
        settings = self._settings
        return await leader_offset(
            self._link,
            settings.replica_id,
            topic_partition,
            epoch,
            earliest=earliest,
            version=settings.offsets_version,
        )

    def _safely(
        self, partition: FollowedPartition, change: Callable[[], object], following: Following | None = None
    ) -> bool:
        """Change a log, and return True. If that fails, call `_change_failed`, and return False."""
        try:
            change()
        except Exception as error:  # noqa: BLE001  logged
            self._change_failed(partition, error, following)
            return False
        return True

    def _change_failed(self, partition: FollowedPartition, error: Exception, following: Following | None) -> None:
        """Stop fetching the partition until its next leader epoch.

        But if the error may pass and the log is unchanged, as with a lack of file descriptors, fetch `following` again
        after the back-off.
        """
        name = partition.topic_partition
        if not isinstance(error, KafkaError):
            log.error("Truncating %s failed: this is a bug, please report it", name, exc_info=error)
            self._fail(partition, repr(error))
        elif following is not None and may_pass(error.__cause__):
            self._log(name, logging.ERROR, "%s; trying again", error)
            self._state.failed(following, partition.log_end(), self._clock.monotonic())
        else:
            self._fail(partition, str(error))

    def _fail(self, partition: FollowedPartition, reason: str, *, is_expected: bool = False) -> None:
        topic_partition = partition.topic_partition
        level = logging.INFO if is_expected else logging.ERROR
        log.log(level, "%s is no longer copied from its leader: %s", topic_partition, reason)
        self._state.forget(topic_partition)
        self._partitions.pop(topic_partition, None)
        self._reports.failed(partition, reason)
