"""Random sequences of requests, lost responses, timeouts, topic changes and coordinator restarts."""

from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.support.examples import examples
from tests.unit.coordinator.consumer_driver import Client, ConsumerDriver

_SUBSCRIPTIONS = strategies.sampled_from([("t",), ("u",), ("t", "u"), ("missing",)])


class ConsumerGroupMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.driver = ConsumerDriver()
        self._ids = 0

    @rule(
        target=clients,
        topics=_SUBSCRIPTIONS,
        assignor=strategies.sampled_from([None, "uniform", "range"]),
        regex=strategies.sampled_from([None, "[tu]", "t.*"]),
    )
    def join(self, topics: tuple[str, ...], assignor: str | None, regex: str | None) -> Client:
        self._ids += 1
        return self.driver.join(f"m{self._ids}", *topics, assignor=assignor, regex=regex)

    @rule(client=clients, is_lost=strategies.booleans())
    def heartbeat(self, client: Client, is_lost: bool) -> None:
        self.driver.beat_or_rejoin(client, is_lost=is_lost)
        self.driver.clients[client.member_id] = client

    @rule(client=clients)
    def apply_assignment(self, client: Client) -> None:
        if client.member_id in self.driver.clients:
            self.driver.apply_assignment(client)

    @rule(client=clients, topics=_SUBSCRIPTIONS)
    def subscribe(self, client: Client, topics: tuple[str, ...]) -> None:
        client.topics = topics

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        if client.member_id in self.driver.clients:
            self.driver.leave(client)

    @rule(ms=strategies.sampled_from([500, 1000, 20_000, 45_000]))
    def wait(self, ms: int) -> None:
        self.driver.pass_time(ms)

    @rule(topic=strategies.sampled_from(["t", "u", "missing"]), count=strategies.integers(1, 5))
    def create_partitions(self, topic: str, count: int) -> None:
        known = self.driver.topics.describe(topic)
        if known is None or known[1] < count:
            self.driver.topics.set(topic, count)

    @rule()
    def delete_topic(self) -> None:
        if self.driver.topics.describe("u") is not None:
            self.driver.topics.delete("u")

    @rule()
    def move_coordinator(self) -> None:
        self.driver.reload()

    @invariant()
    def one_owner_per_partition(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        self.driver.settle()
        self.driver.reload()


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(max_examples=examples(25), stateful_step_count=30)
