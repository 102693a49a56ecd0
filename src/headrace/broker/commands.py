"""Execute a controller's commands on this broker, in order: logs must be open before clients see the partitions."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker.state_changes import Issuer, StateChanges
from headrace.cluster import topic_names
from headrace.cluster.commands import Command, LeaderAndIsr, StoppedReplica, StopReplica, UpdateMetadata
from headrace.cluster.image import TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import Pace, chunks
from headrace.storage.dirs.partition_dir import stray_advice
from headrace.types import PartitionState, TopicPartition

if TYPE_CHECKING:
    from headrace.replication.following.partition import FollowedPartition

_AT_ONCE: Final = 200
"""Maximum number of partitions to start or stop following before a pause for other work."""

log = logging.getLogger(__name__)


class Following(Protocol):
    """Copies partitions from their leaders."""

    def follow(self, partitions: "Sequence[FollowedPartition]") -> None:
        """Fetch these partitions from their current leaders under their current leader epochs."""

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions. Nothing is appended to their logs after this."""

    async def close_idle(self) -> None:
        """Close connections to brokers that no partition is fetched from."""


class Commands:
    """Executes the controller's commands on this broker, one after another."""

    def __init__(
        self,
        node_id: int,
        replicas: ReplicaManager,
        cache: MetadataCache,
        executor: Executor,
        changes: StateChanges,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._cache = cache
        self._executor = executor
        self.changes = changes
        self.in_order = asyncio.Lock()
        """Held while a command is executed."""
        self.following: Following | None = None
        """None in a cluster of one broker."""
        self.on_led: Callable[[TopicPartition], None] = lambda _: None
        """Called with a partition that this broker begins to lead, or leads under a new epoch."""
        self.on_resigned: Callable[[TopicPartition], None] = lambda _: None
        """Called with a partition that this broker no longer leads."""

    async def close(self) -> None:
        """Wait for the command in progress. Never execute later ones: the logs are about to be closed."""
        await self.in_order.acquire()

    async def deliver(self, broker_id: int, command: Command) -> None:
        """Execute a command. Partition errors are logged."""
        assert broker_id == self._node_id, f"a command for broker {broker_id}"
        issuer = Issuer(broker_id, self._cache.image.controller_epoch)  # the controller is in this process
        if isinstance(command, LeaderAndIsr):
            await self.lead_and_follow(command.partitions, issuer)
        elif isinstance(command, StopReplica):
            await self.stop(command.replicas, issuer)
        else:
            await self.update(command)

    async def update(self, update: UpdateMetadata) -> None:
        """Update the metadata that clients see."""
        async with self.in_order:
            await self._cache.apply(update)
        self.changes.updated(update)

    async def lead_and_follow(
        self, states: Sequence[PartitionState], issuer: Issuer
    ) -> dict[TopicPartition, ErrorCode]:
        """Lead or follow partitions. Return an error code per partition, for the reply to LeaderAndIsr."""
        async with self.in_order:
            # A new controller sends the states of all partitions, although most are unchanged.
            pace = Pace()
            results: dict[TopicPartition, ErrorCode] = {}
            accepted, replaced = [], []
            for state in states:
                topic_partition = TopicPartition(state.topic, state.partition)
                error = self._check(state)
                if error is ErrorCode.inconsistent_topic_id and state.topic_id.int:
                    replaced.append(topic_partition)
                    error = ErrorCode.none
                results[topic_partition] = error
                if not error:
                    accepted.append(state)
                await pace.rest()
            self._withdraw(replaced)
            # Opening logs waits for the disk: use a thread.
            loop = asyncio.get_running_loop()
            results |= await loop.run_in_executor(self._executor, self._open, accepted, replaced)
            ready = [state for state in accepted if not results[TopicPartition(state.topic, state.partition)]]
            results |= await self._take_over(ready, issuer)
            for state in states:
                error = results[TopicPartition(state.topic, state.partition)]
                if error:
                    self.changes.refused(issuer, state, error)
                    await pace.rest()
            return results

    def _check(self, state: PartitionState) -> ErrorCode:
        # Any client can send the request, and the topic name becomes part of a path.
        if not topic_names.is_valid(state.topic) or state.partition < 0:
            return ErrorCode.invalid_topic_exception
        if not state.topic_id.int:  # from a controller before Kafka 2.8
            return ErrorCode.inconsistent_topic_id
        if self._node_id not in state.replicas:
            return ErrorCode.unknown_topic_or_partition
        return self._replicas.check(state)

    def _withdraw(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Stop serving and copying partitions. Return those that have files."""
        if self.following is not None:
            self.following.forget(partitions)
        withdrawn = self._replicas.withdraw(partitions)
        for topic_partition in partitions:
            self.on_resigned(topic_partition)
        return withdrawn

    def _open(
        self, states: Sequence[PartitionState], replaced: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Open or create logs, and return the errors. Set aside the logs of `replaced`, whose topics were deleted.

        A controller sends no StopReplica to a broker whose ZooKeeper session has expired. If a topic is deleted and
        created again during that time, a Kafka broker refuses to lead the new topic, and accepts records for the
        deleted one, until it restarts.
        """
        errors: dict[TopicPartition, ErrorCode] = {}
        for state in states:
            topic_partition = TopicPartition(state.topic, state.partition)
            try:
                if topic_partition in replaced:
                    path = self._replicas.log_dirs.set_aside(topic_partition)
                    log.warning("%s was deleted and created again. %s", topic_partition, stray_advice(path))
                self._replicas.open(topic_partition, state.topic_id, is_new=state.is_new)
            except KafkaError as error:
                log.error("%s is offline: %s", topic_partition, error)
                errors[topic_partition] = error.code
        self._sync_names()
        return errors

    async def _take_over(self, states: Sequence[PartitionState], issuer: Issuer) -> dict[TopicPartition, ErrorCode]:
        """Lead and follow partitions whose logs are open, and return the errors."""
        errors: dict[TopicPartition, ErrorCode] = {}
        followed = []
        pace = Pace()
        for state in states:
            topic_partition = TopicPartition(state.topic, state.partition)
            try:
                if state.leader == self._node_id:
                    if self.following is not None:
                        self.following.forget((topic_partition,))
                    self.changes.led(issuer, state, self._replicas.lead(state))
                    self.on_led(topic_partition)
                elif state.leader in self._cache.image.brokers:
                    followed.append(self._replicas.follow(state))
                    self.changes.follows(issuer, state, followed[-1])
                    self.on_resigned(topic_partition)
                else:  # the leader is dead: change nothing until the controller elects another one
                    self.changes.waits(issuer, state)
            except KafkaError as error:  # it is offline: its disk has failed meanwhile
                errors[topic_partition] = error.code
                self.on_resigned(topic_partition)
            await pace.rest()
        if self.following is not None:
            for some in chunks(followed, _AT_ONCE):
                online = set(self._replicas.followed())  # a directory may have failed during a pause
                self.following.follow([partition for partition in some if partition in online])
                await pace.rest()
            await self.following.close_idle()
        return errors

    async def stop(self, replicas: Sequence[StoppedReplica], issuer: Issuer) -> dict[TopicPartition, ErrorCode]:
        """Stop replicas, and delete some. Return an error code per partition, for the reply to StopReplica."""
        async with self.in_order:
            results: dict[TopicPartition, ErrorCode] = {}
            withdrawn: list[TopicPartition] = []
            pace = Pace()
            for some in chunks(replicas, _AT_ONCE):
                errors = {
                    stopped.topic_partition: self._replicas.check_stop(stopped.topic_partition, stopped.leader_epoch)
                    for stopped in some
                }
                results |= errors
                withdrawn += self._stop([stopped for stopped in some if not errors[stopped.topic_partition]], issuer)
                await pace.rest()
            if self.following is not None:
                await self.following.close_idle()
            loop = asyncio.get_running_loop()
            return results | await loop.run_in_executor(self._executor, self._delete, withdrawn)

    def _stop(self, stopping: Sequence[StoppedReplica], issuer: Issuer) -> list[TopicPartition]:
        """Stop replicas. Return those whose files the caller must delete, in a thread because that is slow."""
        if self.following is not None:
            self.following.forget([stopped.topic_partition for stopped in stopping])
        self.changes.stopped(issuer, stopping)
        return self._withdraw([stopped.topic_partition for stopped in stopping if stopped.delete])

    async def note_departures(self) -> None:
        """Raise high watermarks that waited for followers on brokers that are no longer registered."""
        pace = Pace()
        for partition in self._replicas.partitions():
            if partition.followers is not None:
                partition.followers.commit()
            await pace.rest()

    async def resign_moved(self, topics: Iterable[TopicImage]) -> None:
        """Stop leading partitions that were moved to other brokers, or whose topic was created again. Keep their logs.

        StopReplica usually follows, but not if this broker was unregistered when its replicas were moved. A Kafka
        broker then leads them until its next start, and loses the acks=1 records of clients with old metadata.
        """
        pace = Pace()
        for topic in topics:
            for index, partition in enumerate(topic.partitions):
                if self._node_id in partition.replicas:
                    continue
                led = self._replicas.find(topic.name, index)
                if led is not None and (led.leader_epoch < partition.leader_epoch or led.topic_id != topic.topic_id):
                    log.info(
                        "%s is now on brokers %s: this broker no longer leads it, but keeps its log until StopReplica",
                        led.topic_partition,
                        list(partition.replicas),
                    )
                    self._replicas.withdraw((led.topic_partition,))
                    self.on_resigned(led.topic_partition)
            await pace.rest()

    def _delete(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        errors = self._replicas.delete_files(partitions)
        self._sync_names()
        return errors

    def _sync_names(self) -> None:
        try:
            self._replicas.log_dirs.sync_names()
        except KafkaError as error:
            log.error("The latest creations and deletions of partitions may not survive a power failure: %s", error)
