"""Plays random histories of a cluster: brokers and controllers come and go in the middle of everything."""

from collections.abc import Callable
from random import Random

from headrace.cluster.controller.batches import Stop
from headrace.cluster.controller.isr import Proposal
from headrace.cluster.image import NO_LEADER, LeaderState
from headrace.errors import KafkaError
from headrace.types import TopicPartition
from tests.unit.cluster.controller.world import World

IDS = (1, 2, 3, 4)
STEPS = 60


class History:
    """Plays one history, and checks after every step what must always hold."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(*IDS)
        self.seen: dict[TopicPartition, LeaderState] = {}
        self.was_away: set[int] = set()
        """Brokers that were dead or restarted at some time: a log that they should have deleted may be left."""
        self.created = 0

    def play(self) -> None:
        steps: list[Callable[[], None]] = [
            self.kill,
            self.start,
            self.bounce,
            self.create,
            self.grow,
            self.delete,
            self.reassign,
            self.cancel,
            self.alter_isr,
            self.alter_isr,
            self.alter_isr,
            self.elect,
            self.shut_down,
            self.fail_over,
            self.deliver,
            self.deliver,
            self.deliver,
        ]
        for _ in range(STEPS):
            self.random.choice(steps)()
            self.check()
        self.come_to_rest()

    # Steps

    def kill(self) -> None:
        if len(self.world.brokers) > 1:
            broker = self.random.choice(sorted(self.world.brokers))
            self.was_away.add(broker)
            self.world.kill(broker)

    def start(self) -> None:
        away = sorted(set(IDS) - self.world.brokers.keys())
        if away:
            self.world.start(self.random.choice(away))

    def bounce(self) -> None:
        broker = self.random.choice(sorted(self.world.brokers))
        self.was_away.add(broker)
        self.world.start(broker)

    def create(self) -> None:
        self.created += 1
        partitions = [self._replicas() for _ in range(self.random.randint(1, 3))]
        self.world.create(f"t{self.created}", *partitions)

    def grow(self) -> None:
        name = self._topic()
        if name is not None and not any(item.is_moving for item in self.world.topics()[name].assignments.values()):
            self.world.grow(name, self._replicas())

    def delete(self) -> None:
        name = self._topic()
        if name is not None:
            self.world.delete(name)

    def reassign(self) -> None:
        partition = self._partition()
        if partition is not None:
            self.world.reassign({partition: self._replicas()})

    def cancel(self) -> None:
        moving = sorted(self.world.machine.context.moving)
        if moving:
            self.world.reassign({self.random.choice(moving): None})

    def alter_isr(self) -> None:
        """Let a leader propose another ISR: with one more live replica, or without a dead one."""
        broker = self.world.brokers[self.random.choice(sorted(self.world.brokers))]
        led = sorted(broker.led)
        if not led:
            return
        state = self.random.choice(led)
        partition = TopicPartition(state.topic, state.partition)
        others = [item for item in state.replicas if item != broker.id and self.random.random() < 0.8]
        isr = [broker.id, *(item for item in others if item in broker.live)]
        known = self.world.machine.context.states.get(partition)
        version = state.partition_epoch if known is None or known.leader_epoch != state.leader_epoch else known.version
        epochs = [(item, self.random.choice((-1, self._epoch_of(item)))) for item in isr]
        try:
            _, effects = self.world.machine.alter_partitions(
                broker.id, broker.epoch, [Proposal(partition, state.leader_epoch, version, epochs)]
            )
        except KafkaError:
            return
        self.world.carry_out(effects)
        after = self.world.machine.context.states.get(partition)
        if known is not None and after is not None:
            assert set(after.isr) - set(known.isr) <= self.world.machine.context.live

    def elect(self) -> None:
        partition = self._partition()
        if partition is not None:
            _, effects = self.world.machine.elect([partition])
            self.world.carry_out(effects)

    def shut_down(self) -> None:
        broker = self.world.brokers[self.random.choice(sorted(self.world.brokers))]
        if len(self.world.machine.context.live) > 1:
            remaining, effects = self.world.machine.shut_down(broker.id, broker.epoch)
            self.world.carry_out(effects)
            for partition in remaining:
                assert not self._could_lead(partition, broker.id)

    def fail_over(self) -> None:
        """The controller dies in the middle of an event; orders on the way may arrive later."""
        world = self.world
        moving = sorted(item for item in world.machine.context.moving if item in world.machine.context.states)
        if moving and self.random.random() < 0.5:
            # The target is in sync, but the controller dies before it has ended the reassignment.
            state = world.machine.context.states[moving[0]]
            leader = world.brokers.get(state.leader)
            target = world.machine.context.assignment(moving[0]).target
            if leader is not None and set(target) <= world.machine.context.live:
                isr = [(item, -1) for item in dict.fromkeys((leader.id, *target))]
                proposal = Proposal(moving[0], state.leader_epoch, state.version, isr)
                _, effects = world.machine.alter_partitions(leader.id, leader.epoch, [proposal])
                world.carry_out(effects, steps=self.random.randint(0, len(effects)))
        elif self.random.random() < 0.5:
            broker = self.random.choice(sorted(world.brokers))
            registered = [image for image in world.registered() if image.id != broker]
            effects = world.machine.brokers_changed(registered)
            world.carry_out(effects, steps=self.random.randint(0, len(effects)))
        else:
            name = self._topic()
            if name is not None:
                partition = TopicPartition(name, 0)
                _, effects = world.machine.reassign({partition: self._replicas()})
                world.carry_out(effects, steps=self.random.randint(0, len(effects)))
        for live in world.brokers.values():
            for _ in range(self.random.randint(0, len(live.inbox))):
                live.inbox.pop()
        bounced = self.random.choice([*sorted(world.brokers), 0])
        before = world.states()
        if len(world.brokers) > 1 and self.random.random() < 0.15:  # it died together with the controller
            lost = self.random.choice(sorted(world.brokers.keys() - {bounced}))
            del world.brokers[lost]
            self.was_away.add(lost)
        if bounced:
            world.register(bounced)
            self.was_away.add(bounced)
        world.take_office()
        for partition, state in before.items():
            if state.leader == bounced and partition.topic not in world.deletions():
                assert world.states()[partition].leader_epoch > state.leader_epoch

    def deliver(self) -> None:
        waiting = [broker for broker in self.world.brokers.values() if broker.inbox]
        if waiting:
            self.world.deliver_one(self.random.choice(waiting))

    # Choices

    def _replicas(self) -> list[int]:
        live = sorted(self.world.machine.context.live) or sorted(self.world.brokers)
        return self.random.sample(live, self.random.randint(1, min(3, len(live))))

    def _topic(self) -> str | None:
        names = sorted(set(self.world.topics()) - set(self.world.deletions()))
        return self.random.choice(names) if names else None

    def _partition(self) -> TopicPartition | None:
        name = self._topic()
        if name is None:
            return None
        return TopicPartition(name, self.random.choice(sorted(self.world.topics()[name].assignments)))

    def _epoch_of(self, broker: int) -> int:
        return self.world.brokers[broker].epoch if broker in self.world.brokers else -1

    def _could_lead(self, partition: TopicPartition, but: int) -> bool:
        """Return True if another live replica is in sync."""
        context = self.world.machine.context
        others = set(context.assignment(partition).replicas) & set(context.states[partition].isr) & context.live
        return bool(others - {but})

    # Invariants

    def check(self) -> None:
        world, context = self.world, self.world.machine.context
        assert not [note for note in world.notes if "cannot change" in note]
        states = world.states()
        for partition, state in states.items():
            before = self.seen.get(partition)
            assert state.isr
            assert state.leader == NO_LEADER or state.leader in state.isr
            if len(state.isr) > 1 and partition.topic not in context.deleting:
                assert set(state.isr) <= context.brokers.keys(), f"{partition}: {state}"
            if before is not None:
                assert state.version >= before.version
                assert state.leader_epoch >= before.leader_epoch
                assert state.leader_epoch > before.leader_epoch or state.leader == before.leader
                if state.leader_epoch == before.leader_epoch + 1 and state.leader != NO_LEADER:
                    assert state.leader in before.isr, f"{partition}: {before} -> {state}"
        self.seen = states
        written = {partition: state._replace(zxid=-1) for partition, state in states.items()}
        assert written == {partition: state._replace(zxid=-1) for partition, state in context.states.items()}
        for partition in context.partitions():
            assert context.assignment(partition) == world.assignment(*partition)
        for send in world.sent:
            if isinstance(send.order, Stop):
                for partition, stopped in send.order.replicas.items():
                    if stopped.delete and partition in states and partition.topic not in context.deleting:
                        assert send.broker_id not in states[partition].isr

    def come_to_rest(self) -> None:
        """With all brokers alive and all orders executed, nothing is left to do."""
        world = self.world
        away = sorted(set(IDS) - world.brokers.keys())
        if away:
            world.start(*away)
        stopping = sorted(world.machine.context.stopping)
        if stopping:
            self.was_away.update(stopping)  # orders on the way to the earlier process are lost
            world.start(*stopping)
        for _ in range(20):
            world.settle()
            self.check()
            for broker in world.brokers.values():
                for led in sorted(broker.led):
                    self._fill(broker.id, broker.epoch, TopicPartition(led.topic, led.partition))
        context = world.machine.context
        assert not context.deleting, world.notes[-10:]
        assert not world.deletions()
        assert not context.moving
        assert not context.offline_count()
        states = world.states()
        for partition, state in states.items():
            replicas = world.assignment(*partition).replicas
            assert sorted(state.isr) == sorted(replicas), partition
            for replica in replicas:
                known = world.brokers[replica].states[partition]
                assert (known.leader, known.leader_epoch) == (state.leader, state.leader_epoch)
            for broker in world.brokers.values():
                announced = broker.announced[partition].state
                assert (announced.leader, announced.version) == (state.leader, state.version)
        for broker_id, logs in world.logs.items():
            wanted = {partition for partition in states if broker_id in world.assignment(*partition).replicas}
            assert logs >= wanted
            if broker_id not in self.was_away and world.epoch == 1:
                assert logs == wanted

    def _fill(self, broker: int, epoch: int, partition: TopicPartition) -> None:
        """Let a leader add all replicas to the ISR."""
        context = self.world.machine.context
        state = context.states.get(partition)
        if state is None or state.leader != broker:
            return
        isr = [(item, -1) for item in context.assignment(partition).replicas]
        _, effects = self.world.machine.alter_partitions(
            broker, epoch, [Proposal(partition, state.leader_epoch, state.version, isr)]
        )
        self.world.carry_out(effects)
