"""The life cycle of a consumer protocol group (KIP-848), and all refusals."""

from typing import Any

from headrace.wire.apis import ApiKey
from tests.parity.both import Both, Names, Request, Side, every_version
from tests.parity.members import beat, commit, create_topic

BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
FIRST, SECOND, THIRD, FOURTH = (f"{letter * 22}" for letter in "ABCD")


def describe(*groups: str) -> dict[str, Any]:
    return {"group_ids": list(groups), "include_authorized_operations": False}


@every_version(BEAT)
def test_missing_and_invalid_fields(version: int, both: Both, name: Names) -> None:
    group, topic = name(), "no-such-topic"
    for case, request in (
        ("no group", beat("", 0, topics=[topic])),
        ("a blank group", beat(" ", 0, topics=[topic])),
        ("a blank member", beat(group, 0, topics=[topic], member=" ")),
        ("no instance", beat(group, 0, topics=[topic], instance="")),
        ("a blank instance", beat(group, 0, topics=[topic], instance=" ")),
        ("a blank rack", beat(group, 0, topics=[topic], rack_id=" ")),
        ("no rebalance timeout", beat(group, 0, topics=[topic], rebalance_timeout=-1)),
        ("no topics", beat(group, 0, rebalance_timeout=1000)),
        ("no partitions", beat(group, 0, topics=[topic], topic_partitions=None)),
        ("partitions", beat(group, 0, topics=[topic], owned=(topic, (0,)))),
        ("an invalid epoch", beat(group, -3)),
        ("a dynamic member leaves temporarily", beat(group, -2)),
        ("an unknown assignor", beat(group, 0, topics=[topic], server_assignor="sticky")),
        ("no assignor", beat(group, 0, topics=[topic], server_assignor="")),
        ("an unknown member heartbeats", beat(group, 1)),
        ("an unknown member leaves", beat(group, -1)),
        ("a static stranger leaves", beat(group, -2, instance="i")),
        ("an unknown static member heartbeats", beat(group, 1, instance="i")),
        ("a member without an id heartbeats", beat(group, 1, member="")),
    ):
        both.ask(BEAT, version, request, case=case)
    if version >= 1:
        both.ask(BEAT, version, beat(group, 0, topics=[topic], member=""), case="a member without an id joins")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), case="after all")


@every_version(BEAT)
def test_epochs(version: int, both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 2)
    both.ask(BEAT, version, beat(group, 0, topics=[topic]), case="joins")
    for case, request in (
        ("heartbeats", beat(group, 2)),
        ("an older epoch", beat(group, 1)),
        ("a newer epoch", beat(group, 9)),
        ("an unknown member", beat(group, 2, member=SECOND)),
        ("another instance", beat(group, 2, instance="i")),
        ("another assignor", beat(group, 2, server_assignor="range")),
        ("an unknown assignor", beat(group, 2, server_assignor="sticky")),
        ("owns its assignment", beat(group, 2, owned=(topic, (0, 1)))),
        ("repeats all fields", beat(group, 2, topics=[topic], owned=(topic, (0, 1)))),
        ("joins again", beat(group, 0, topics=[topic])),
        ("an unknown member leaves", beat(group, -1, member=SECOND)),
        ("an unknown static member leaves", beat(group, -2, instance="i")),
    ):
        both.ask(BEAT, version, request, case=case)
        both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), case=f"after: {case}")
    both.ask(BEAT, version, beat(group, 0, topics=[topic], member=SECOND), case="another joins", on="second")
    for case, request in (
        ("has to revoke one", beat(group, 2)),
        ("keeps its epoch", beat(group, 2, owned=(topic, (0, 1)))),
        ("has revoked one", beat(group, 2, owned=(topic, (0,)))),
        ("lost the answer", beat(group, 2, owned=(topic, (0,)))),
        ("lost the answer and owns too much", beat(group, 2, owned=(topic, (0, 1)))),
        ("lost the answer and omits its partitions", beat(group, 2)),
    ):
        both.ask(BEAT, version, request, case=case)
        both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), case=f"after: {case}")
    both.ask(BEAT, version, beat(group, -1), case="leaves")
    both.ask(BEAT, version, beat(group, -1), case="leaves again")
    both.ask(BEAT, version, beat(group, 3), case="heartbeats after leaving")
    both.ask(BEAT, version, beat(group, -1, member=SECOND), case="the last leaves", on="second")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), case="empty")


@every_version(BEAT)
def test_static_members(version: int, both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 2)
    both.ask(BEAT, version, beat(group, 0, topics=[topic], instance="i"), case="joins")
    taking_over = beat(group, 0, topics=[topic], instance="i", member=SECOND)
    for case, request in (
        ("another member joins with its instance", taking_over),
        ("another member heartbeats", beat(group, 2, instance="i", member=SECOND)),
        ("an unknown instance heartbeats", beat(group, 2, instance="j")),
        ("another member leaves temporarily", beat(group, -2, instance="i", member=SECOND)),
        ("another member leaves for good", beat(group, -1, instance="i", member=SECOND)),
        ("leaves temporarily", beat(group, -2, instance="i")),
        ("heartbeats while away", beat(group, 2, instance="i")),
        ("another member takes over", taking_over),
        ("the former member heartbeats", beat(group, 2, instance="i")),
        ("the former member leaves", beat(group, -2, instance="i")),
        ("the former member joins again", beat(group, 0, topics=[topic], instance="i")),
        ("the new member heartbeats", beat(group, 2, instance="i", member=SECOND)),
        ("the new member leaves for good", beat(group, -1, instance="i", member=SECOND)),
    ):
        both.ask(BEAT, version, request, case=case)
        both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), case=f"after: {case}")


def test_invalid_expressions(both: Both, name: Names) -> None:
    group = name()
    for regex in ("[", "(", "*", "a{2,1}", "(?<name", "\\", "a**", "(?=a)", "\\1"):
        both.ask(BEAT, 1, beat(group, 0, subscribed_topic_regex=regex, rebalance_timeout=1000), case=f"joins: {regex}")
    both.ask(BEAT, 1, beat(group, 0, topics=["no-such-topic"]), case="joins")
    both.ask(BEAT, 1, beat(group, 1, subscribed_topic_regex="["), case="heartbeats")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), case="after all")


EXPRESSIONS = (
    # supported and not supported by RE2
    r"\p{Greek}+", r"\pL.*", r"\P{Lu}*", r"\p{L}+", r"\p{Nonsense}", r"[[:alpha:]]+", r"[[:nonsense:]]", r"[^\d_]*",
    r"a(?=b)", r"a(?!b)", r"(?<=a)b", r"(?<!a)b", r"(a)\1", r"(?P<n>a)(?P=n)", r"(?P<n>a)", r"(?<n>a)",
    r"(?P<n>a)(?P<n>b)",
    r"a++", r"a*+", r"(?>a)", r"(?i)ORDERS-.*", r"(?U)a.*", r"(?x)a b", r"(?s:.*)", r"(?m)^a$", r"(?-s)a", r"(?u)a",
    r"\Qa.b\E.*", r"\Qa.b", r"a\E", r"\Q\C\E", r"\C", r"\X", r"\R", r"\h", r"\A.*\z", r".*\Z", r"\bword\b",
    r"\x{61}.*", r"\x61",
    r"\141", r"\08", r"\cA", r"\e", r"\u0061", r"\N{DIGIT ONE}", r"\a\f\t\n\r\v", r"\_",
    "a{1000}", "a{1001}", "a{2,1}", "a{,5}", "a{}", "a{1", "(a{100}){10}",
    "a**", "a?*", "(a*)*", "x{2}{3}", "(?:)", "()", "|", "a||b", "(|a)*", "[]a]", "[a", "[z-a]", "[a-\\d]",
    "a)", "(a", "^*", "$+", "ä.*",
    "(?:aa|a)" * 45 + "#", "a?" * 28 + "b", ".{0,249}" * 6 + "#",
)  # fmt: skip


ONLY_KAFKA = ("(a{100}){11}", "((a{100}){100}){100}", "(?:a{1000}){1000}", r"\é")
"""RE2 in C++ limits nested repetitions to 1000; RE2 in Java does not, and needs gigabytes."""


def refusal(answer: Any) -> Any:
    return {name: answer[name] for name in ("error_code", "error_message")}


def test_expressions(both: Both, name: Names) -> None:
    for regex in EXPRESSIONS:
        both.send(BEAT, 1, beat(name(), 0, subscribed_topic_regex=regex, rebalance_timeout=1000))
        # only Headrace resolves the topics of an expression before it answers
        both.receive(BEAT, 1, case=regex, only=refusal)


def test_expressions_accepted_only_by_kafka(both: Both, name: Names) -> None:
    for regex in ONLY_KAFKA:
        both.send(BEAT, 1, beat(name(), 0, subscribed_topic_regex=regex, rebalance_timeout=1000))
        answers = both.receive(BEAT, 1, only=lambda answer: None)
        assert answers.kafka["error_code"] == "none", regex
        assert answers.headrace["error_code"] == "invalid_regular_expression", regex


@every_version(BEAT)
def test_a_full_group(version: int, both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 2)
    for member in (FIRST, SECOND, THIRD, FOURTH):
        both.ask(BEAT, version, beat(group, 0, topics=[topic], member=member), case=f"{member} joins")
    both.ask(BEAT, version, beat(group, 0, topics=[topic], member=THIRD), case="a member joins again")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), case="full")
    both.ask(BEAT, version, beat(group, -1, member=FIRST), case="one leaves")
    both.ask(BEAT, version, beat(group, 0, topics=[topic], member=FOURTH), case="another joins")


@every_version(ApiKey.OFFSET_COMMIT, since=5)
def test_commits(version: int, both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 2)
    both.ask(BEAT, 1, beat(group, 0, topics=[topic]), case="joins")
    for case, fields in (
        ("good", {"member": FIRST, "generation": 2}),
        ("an older epoch", {"member": FIRST, "generation": 1}),
        ("a newer epoch", {"member": FIRST, "generation": 9}),
        ("no epoch", {"member": FIRST}),
        ("an unknown member", {"member": SECOND, "generation": 2}),
        ("no member", {}),
    ):
        both.ask(ApiKey.OFFSET_COMMIT, version, commit(group, topic, (0, 7, ""), **fields), case=case)
    both.ask(BEAT, 1, beat(group, -1), case="leaves")
    late = commit(group, topic, (0, 7, ""), member=FIRST, generation=2)
    both.ask(ApiKey.OFFSET_COMMIT, version, late, case="after leaving")


@every_version(ApiKey.OFFSET_FETCH, since=8)
def test_fetches(version: int, both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 2)
    both.ask(BEAT, 1, beat(group, 0, topics=[topic]), case="joins")
    both.ask(ApiKey.OFFSET_COMMIT, 9, commit(group, topic, (0, 7, ""), member=FIRST, generation=2))
    for case, member, epoch in (
        ("good", FIRST, 2),
        ("an older epoch", FIRST, 1),
        ("a newer epoch", FIRST, 9),
        ("no epoch", FIRST, -1),
        ("an unknown member", SECOND, 2),
        ("an unknown member without an epoch", SECOND, -1),
        ("an epoch without a member", None, 2),
        ("no member", None, -1),
    ):
        both.ask(ApiKey.OFFSET_FETCH, version, fetch(group, topic, member, epoch), case=case)
        both.ask(ApiKey.OFFSET_FETCH, version, fetch(group, None, member, epoch), case=f"{case}, all topics")


def fetch(group: str, topic: str | None, member: str | None, epoch: int) -> Request:
    def message(side: Side) -> dict[str, Any]:
        topics = None
        if topic is not None:
            topics = [{"name": topic, "topic_id": side.topic_id(topic), "partition_indexes": [0, 1]}]
        entry = {"group_id": group, "topics": topics, "member_id": member, "member_epoch": epoch}
        return {"groups": [entry]}

    return message


@every_version(ApiKey.CONSUMER_GROUP_DESCRIBE)
def test_groups_are_described(version: int, both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 2)
    both.ask(BEAT, 1, beat(group, 0, topics=[topic], rack_id="r", instance="i"), case="joins")
    for case, groups in (
        ("one", [group]),
        ("unknown", ["no-such-group"]),
        ("no name", [""]),
        ("several", [group, "no-such-group", ""]),
        ("twice", [group, group]),
        ("none", []),
    ):
        for operations in (False, True):
            request = {**describe(*groups), "include_authorized_operations": operations}
            both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, request, case=f"{case}, operations: {operations}")
