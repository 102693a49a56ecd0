"""The controller of a cluster as a pure state machine: events go in, effects come out.

The context is ahead of the store until the effects are carried out. If a write fails, the machine is discarded: the
broker leaves office, and the next controller starts from the store's contents. The controller of a single broker
returns to the earlier context instead. The machine predicts the versions of state nodes, as only it writes them.
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.cluster import znodes
from headrace.cluster.controller import deletion, isr, partitions, reassignment, replicas, selectors
from headrace.cluster.controller.context import UNKNOWN_EPOCH, Context, Replica
from headrace.cluster.controller.isr import Proposal
from headrace.cluster.controller.transitions import PartitionPhase, ReplicaPhase
from headrace.cluster.controller.work import Effect, Work
from headrace.cluster.image import Assignment, BrokerImage, LeaderState
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition


class ReadTopic(NamedTuple):
    """The contents of a topic's node."""

    topic_id: uuid.UUID
    assignments: Mapping[int, Assignment]


class Tree(NamedTuple):
    """The state of the cluster that a new controller has read from the store."""

    brokers: Sequence[BrokerImage]
    topics: Mapping[str, ReadTopic]
    states: Mapping[TopicPartition, LeaderState]
    deletions: Collection[str]
    """Topics in `/admin/delete_topics`."""


class ControllerMachine:
    """The controller on broker `broker_id` in controller epoch `epoch`. `may_be_unclean` is the same as for `Work`."""

    def __init__(self, broker_id: int, epoch: int, may_be_unclean: Callable[[str], bool]) -> None:
        self.context = Context(broker_id, epoch)
        self._may_be_unclean = may_be_unclean
        self.unclean_elections = 0

    def _work(self) -> Work:
        return Work(self.context, self._may_be_unclean)

    def _done(self, work: Work) -> list[Effect]:
        self.unclean_elections += work.unclean_elections
        return work.effects()

    # Taking office

    def take_office(self, tree: Tree) -> list[Effect]:
        """Announce live brokers and leaders, elect missing leaders, and resume deletions and reassignments."""
        work, context = self._work(), self.context
        for broker in tree.brokers:
            context.brokers[broker.id] = broker
            work.connect(broker)
        for name, topic in tree.topics.items():
            self._add_topic(name, topic)
        context.states.update(
            (partition, state) for partition, state in tree.states.items() if context.exists(partition)
        )
        context.deleting.update(name for name in tree.deletions if name in tree.topics)
        for deleted in context.deleting:
            if any(not context.is_online(item.broker, item.partition) for item in context.replicas_of(deleted)):
                context.undeletable.add(deleted)
        # Brokers must know the live brokers before they can follow leaders on them.
        work.batch.announce(())
        work.flush()
        offline = self._begin_replicas()
        self._begin_partitions(work)
        # Clients are waiting for partitions that had no leader, so send these before the others.
        elected = {partition for partition, state in context.states.items() if state.controller_epoch == context.epoch}
        self._remove_dead(work, [replica for replica in offline if replica.partition in elected])
        work.flush()
        for partition in context.states:
            if partition not in elected and partition.topic not in context.deleting:
                assignment = context.assignment(partition)
                online = [broker for broker in assignment.replicas if context.is_online(broker, partition)]
                work.batch.lead(online, partition, assignment)
        self._remove_dead(work, [replica for replica in offline if replica.partition not in elected])
        isr.remove_restarted(work)
        work.flush()
        deletion.begin(work, ())
        reassignment.resume(work)
        return self._done(work)

    def _add_topic(self, name: str, topic: ReadTopic) -> list[TopicPartition]:
        """Add a topic, or new partitions of one. Return the new partitions."""
        context = self.context
        context.add_topic(name, topic.topic_id)
        known = context.assignments[name]
        added = [TopicPartition(name, index) for index in topic.assignments if index not in known]
        for partition in added:
            assignment = topic.assignments[partition.partition]
            context.assign(partition, assignment)
            if assignment.is_moving:
                context.moving.add(partition)
        return added

    def _begin_replicas(self) -> list[Replica]:
        """Set the phases of all replicas. Return the offline replicas, except in topics that are being deleted."""
        context = self.context
        offline = []
        for partition in context.partitions():
            for broker in context.assignment(partition).replicas:
                replica = Replica(partition, broker)
                if context.is_online(broker, partition):
                    context.replica_phases[replica] = ReplicaPhase.ONLINE
                else:
                    context.replica_phases[replica] = ReplicaPhase.DELETION_INELIGIBLE
                    if partition.topic not in context.deleting:
                        offline.append(replica)
        return offline

    def _remove_dead(self, work: Work, dead: Sequence[Replica]) -> None:
        """Remove dead replicas from ISRs: the previous controller could not if it died together with their brokers."""
        if self.context.brokers:  # the only broker of an embedded store registers later
            replicas.to_offline(work, dead)

    def _begin_partitions(self, work: Work) -> None:
        context = self.context
        for partition in context.partitions():
            state = context.states.get(partition)
            if state is None:
                phase = PartitionPhase.NEW
            else:
                is_led = context.is_online(state.leader, partition)
                is_led = is_led and not selectors.has_restarted(context, state.leader, state)
                phase = PartitionPhase.ONLINE if is_led else PartitionPhase.OFFLINE
            context.partition_phases[partition] = phase
        partitions.elect_offline(work)

    # Brokers

    def brokers_changed(self, brokers: Iterable[BrokerImage]) -> list[Effect]:
        """Handle brokers that have started, stopped or restarted since the last call."""
        work, context = self._work(), self.context
        current = {broker.id: broker for broker in brokers}
        added = [broker for broker in current.values() if broker.id not in context.brokers]
        dead = context.brokers.keys() - current.keys()
        bounced = [
            broker
            for broker in current.values()
            if broker.id in context.brokers and broker.epoch > context.brokers[broker.id].epoch
        ]
        for broker in current.values():
            known = context.brokers.get(broker.id)
            if known is not None and known.epoch == broker.epoch and known != broker:
                context.brokers[broker.id] = broker  # its listeners have changed
                work.connect(broker)
                work.batch.announce(())
        for broker in (*added, *bounced):
            work.connect(broker)
        for broker_id in sorted(dead):
            work.disconnect(broker_id)
        self._start(work, added)
        self._fail(work, {broker.id for broker in bounced})
        self._start(work, bounced)
        self._fail(work, dead)
        return self._done(work)

    def _start(self, work: Work, brokers: Sequence[BrokerImage]) -> None:
        if not brokers:
            return
        context = self.context
        ids = {broker.id for broker in brokers}
        work.note(f"Brokers {sorted(ids)} have started")
        others = context.brokers.keys() - ids
        context.brokers.update((broker.id, broker) for broker in brokers)
        for broker in ids:
            context.offline_logs.pop(broker, None)
        work.batch.announce((), others)
        work.flush()
        served = [partition for partition in context.states if partition.topic not in context.deleting]
        # The new brokers need the live brokers first. In a cluster they also need the partitions, because clients can
        # connect to them before their logs are open.
        work.batch.announce(served if others else (), ids)
        work.flush()
        on_them = context.replicas_on(ids)
        partitions.elect_offline(work)
        replicas.to_online(work, [item for item in on_them if item.partition.topic not in context.deleting])
        if not others:
            work.batch.announce(served)
        work.flush()
        reassignment.resume(work, ids)
        deletion.resume(work, {replica.partition.topic for replica in on_them})

    def _fail(self, work: Work, brokers: Collection[int]) -> None:
        if not brokers:
            return
        context = self.context
        work.note(f"Brokers {sorted(brokers)} have failed or stopped")
        for broker in brokers:
            context.brokers.pop(broker, None)
            context.stopping.discard(broker)
            context.offline_logs.pop(broker, None)
        self._replicas_offline(work, context.replicas_on(set(brokers)))

    def _replicas_offline(self, work: Work, offline: Sequence[Replica]) -> None:
        context = self.context
        partitions.to_offline(work, context.with_offline_leader())
        partitions.elect_offline(work)
        work.flush()
        replicas.to_offline(work, [item for item in offline if item.partition.topic not in context.deleting])
        work.batch.announce(())
        work.flush()
        deletion.replicas_failed(work, [item for item in offline if item.partition.topic in context.deleting])

    def shut_down(self, broker: int, broker_epoch: int) -> tuple[list[TopicPartition], list[Effect]]:
        """Move leadership away from a broker that is about to stop. Return the partitions that it still leads.

        Raises KafkaError: broker_not_available, stale_broker_epoch.
        """
        work, context = self._work(), self.context
        if broker not in context.brokers:
            raise KafkaError(ErrorCode.broker_not_available, f"Broker id {broker} does not exist.")
        if broker_epoch != UNKNOWN_EPOCH and broker_epoch < context.brokers[broker].epoch:
            raise KafkaError(ErrorCode.stale_broker_epoch)
        context.stopping.add(broker)
        on_it = [
            replica.partition
            for replica in context.replicas_on({broker})
            if len(context.assignment(replica.partition).replicas) > 1
            and replica.partition in context.states
            and replica.partition.topic not in context.deleting
        ]
        led = [partition for partition in on_it if context.states[partition].leader == broker]
        followed = [partition for partition in on_it if context.states[partition].leader != broker]
        partitions.to_online(work, led, selectors.controlled_shutdown)
        work.flush()
        replicas.to_offline(work, [Replica(partition, broker) for partition in followed])
        remaining = context.led_by(broker)
        return remaining, self._done(work)

    # Topics

    def topics_changed(self, names: Collection[str], added: Mapping[str, ReadTopic]) -> list[Effect]:
        """Handle the topics that exist now; `added` has new ones, and known ones with new partitions."""
        work, context = self._work(), self.context
        present = set(names)
        for name in [name for name in context.topic_ids if name not in present]:
            context.remove_topic(name)
        new = [
            partition
            for name, topic in added.items()
            if name not in context.deleting
            for partition in self._add_topic(name, topic)
        ]
        started = [Replica(partition, broker) for partition in new for broker in context.assignment(partition).replicas]
        partitions.to_new(work, new)
        replicas.to_new(work, started)
        partitions.to_online(work, new, selectors.offline(unclean=work.may_be_unclean))
        replicas.to_online(work, started)
        return self._done(work)

    def delete_topics(self, names: Iterable[str]) -> list[Effect]:
        """Begin to delete the topics in `/admin/delete_topics`, and remove names of unknown topics from it."""
        work = self._work()
        wanted = set(names)
        known = wanted & self.context.topic_ids.keys()
        work.remove(znodes.deletion_path(name) for name in sorted(wanted - known))
        deletion.begin(work, sorted(known - self.context.deleting))
        return self._done(work)

    def remove_topics(self, names: Iterable[str]) -> list[Effect]:
        """Handle topics whose nodes are already deleted. All brokers are online, so the deletion need not wait."""
        work, context = self._work(), self.context
        removed = tuple(names)
        context.deleting.update(removed)
        for name in removed:
            work.batch.announce(context.partitions_of(name))
            for replica in context.replicas_of(name):
                work.batch.stop(replica.broker, replica.partition, delete=True)
        effects = self._done(work)
        for name in removed:
            context.remove_topic(name)
        return effects

    # Replies to orders

    def led(self, broker: int, errors: Mapping[TopicPartition, ErrorCode]) -> list[Effect]:
        """Handle a broker's reply to LeaderAndIsr: replicas in failed directories are offline (KIP-112)."""
        work, context = self._work(), self.context
        if broker not in context.brokers:
            return []
        before = context.offline_logs.get(broker, set())
        offline = before - {partition for partition, error in errors.items() if error is ErrorCode.none}
        offline |= {partition for partition, error in errors.items() if error is ErrorCode.kafka_storage_error}
        context.offline_logs[broker] = offline
        failed = sorted(offline - before)
        if failed:
            work.note(f"Broker {broker} has {len(failed)} more replicas in failed log directories")
            self._replicas_offline(work, [Replica(partition, broker) for partition in failed])
        return self._done(work)

    def stopped(self, broker: int, errors: Mapping[TopicPartition, ErrorCode]) -> list[Effect]:
        """Handle a broker's reply to StopReplica. It matters only for replicas of topics that are being deleted."""
        work, context = self._work(), self.context
        mine = {
            Replica(partition, broker): error
            for partition, error in errors.items()
            if partition.topic in context.deletion_started
            and context.replica_phases.get(Replica(partition, broker)) is ReplicaPhase.DELETION_STARTED
        }
        deletion.replicas_failed(work, [item for item, error in mine.items() if error is not ErrorCode.none])
        deletion.replicas_deleted(work, [item for item, error in mine.items() if error is ErrorCode.none])
        return self._done(work)

    def directories_failed(self, brokers: Iterable[int]) -> list[Effect]:
        """Send LeaderAndIsr for all replicas to brokers with a failed log directory: the replies have the errors."""
        work = self._work()
        replicas.to_online(work, self.context.replicas_on(set(brokers)))
        return self._done(work)

    # Changes of the ISR

    def alter_partitions(
        self, leader: int, broker_epoch: int, proposals: Sequence[Proposal]
    ) -> tuple[dict[TopicPartition, LeaderState | ErrorCode], list[Effect]]:
        """Handle AlterPartition. Raises KafkaError(stale_broker_epoch) if the leader has restarted or is dead."""
        work, context = self._work(), self.context
        if leader not in context.brokers or context.brokers[leader].epoch != broker_epoch:
            raise KafkaError(ErrorCode.stale_broker_epoch)
        answers: dict[TopicPartition, LeaderState | ErrorCode] = {}
        changed = []
        for proposal in proposals:
            partition = proposal.partition
            decision = isr.decide(context, leader, proposal)
            if decision is None:
                state = context.states[partition]
                state = state._replace(isr=proposal.brokers, recovery=proposal.recovery)
                decision = work.set_state(partition, state)
                changed.append(partition)
            answers[partition] = decision
        work.batch.announce([proposal.partition for proposal in proposals])
        work.flush()
        reassignment.complete(work, changed)
        return answers, self._done(work)

    def states_read(self, states: Mapping[TopicPartition, LeaderState]) -> list[Effect]:
        """Handle states that brokers have written to the store themselves, as before KIP-497."""
        work, context = self._work(), self.context
        known = {partition: state for partition, state in states.items() if partition in context.states}
        context.states.update(known)
        work.batch.announce(known)
        work.flush()
        reassignment.complete(work, known)
        return self._done(work)

    # Elections and reassignments

    def elect(
        self, wanted: Iterable[TopicPartition], *, unclean: bool = False
    ) -> tuple[dict[TopicPartition, KafkaError | int], list[Effect]]:
        """Elect preferred leaders; with `unclean`, leaders for partitions without one, even outside the ISR (KIP-460).

        Return for each partition its leader or an error.
        """
        work, context = self._work(), self.context
        results: dict[TopicPartition, KafkaError | int] = {}
        electable = []
        for partition in wanted:
            error = self._no_election(partition, unclean=unclean)
            if error is None:
                electable.append(partition)
            else:
                results[partition] = error
        select = selectors.offline(unclean=lambda _: True) if unclean else selectors.preferred
        failed = partitions.to_online(work, electable, select)
        code = ErrorCode.eligible_leaders_not_available if unclean else ErrorCode.preferred_leader_not_available
        kind = "unclean" if unclean else "preferred"
        for partition in electable:
            state = context.states.get(partition)
            results[partition] = (
                KafkaError(code, f"Failed to elect leader for partition {partition} under strategy {kind}")
                if partition in failed or state is None
                else state.leader
            )
        return results, self._done(work)

    def _no_election(self, partition: TopicPartition, *, unclean: bool) -> KafkaError | None:
        context = self.context
        if not context.exists(partition):
            return KafkaError(ErrorCode.unknown_topic_or_partition, "The partition does not exist.")
        if partition.topic in context.deleting:
            return KafkaError(ErrorCode.invalid_topic_exception, "The topic is being deleted")
        state = context.states.get(partition)
        if state is None:
            return None
        if unclean:
            is_led = state.leader in context.live
        else:
            is_led = state.leader == context.assignment(partition).replicas[0]
        return KafkaError(ErrorCode.election_not_needed) if is_led else None

    def enable_unclean(self, topic: str | None = None) -> list[Effect]:
        """Elect leaders after `unclean.leader.election.enable` has changed for a topic or (None) for all."""
        work = self._work()
        partitions.elect_offline(work, topic)
        return self._done(work)

    def balance(self, percentage: int) -> list[Effect]:
        """Return leadership to a broker if others lead more than `percentage` % of the partitions that prefer it."""
        context = self.context
        by_broker: dict[int, list[TopicPartition]] = {}
        for partition in context.states:
            if partition.topic not in context.deleting:
                by_broker.setdefault(context.assignment(partition).replicas[0], []).append(partition)
        wanted = []
        for broker, preferred in by_broker.items():
            missing = [partition for partition in preferred if context.states[partition].leader != broker]
            if len(missing) / len(preferred) > percentage / 100:
                wanted += [item for item in missing if selectors.preferred(context, item, context.states[item])]
        work = self._work()
        partitions.to_online(work, wanted, selectors.preferred)
        return self._done(work)

    def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, resize: bool = True
    ) -> tuple[dict[TopicPartition, KafkaError | None], list[Effect]]:
        """Reassign partitions; a target of None cancels. Return None or the error for each partition (KIP-455).

        Without `resize`, refuse to change the number of a partition's replicas (KIP-860).
        """
        work = self._work()
        results: dict[TopicPartition, KafkaError | None] = {}
        wanted: dict[TopicPartition, Assignment] = {}
        for partition, target in targets.items():
            try:
                wanted[partition] = reassignment.validate(self.context, partition, target, resize=resize)
            except KafkaError as error:
                results[partition] = error.with_traceback(None)
            else:
                results[partition] = None
        reassignment.reassign(work, wanted)
        return results, self._done(work)

    def reassignments(self, wanted: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Assignment]:
        """Return the reassignments in progress, of all or only of `wanted` partitions."""
        found = sorted(self.context.moving) if wanted is None else wanted
        context = self.context
        return {partition: context.assignment(partition) for partition in found if partition in context.moving}
