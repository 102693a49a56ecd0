"""The life of a group of the consumer protocol (KIP-848), and every way to be refused."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.wire.apis import ApiKey
from tests.parity.both import Asked, Both, Side, every_version
from tests.parity.test_committed_offsets import commit
from tests.parity.test_migration import beat, created

Names = Callable[[], str]
BEAT = ApiKey.CONSUMER_GROUP_HEARTBEAT
FIRST, SECOND, THIRD, FOURTH = (f"{letter * 22}" for letter in "ABCD")


def describe(*groups: str) -> dict[str, Any]:
    return {"group_ids": list(groups), "include_authorized_operations": False}


@every_version(BEAT)
def test_requests_that_say_too_little_or_too_much(version: int, both: Both, name: Names) -> None:
    group, topic = name(), "no-such-topic"
    for what, asked in (
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
        ("an epoch that does not exist", beat(group, -3)),
        ("a dynamic member goes away for a while", beat(group, -2)),
        ("an assignor of nobody", beat(group, 0, topics=[topic], server_assignor="sticky")),
        ("no assignor", beat(group, 0, topics=[topic], server_assignor="")),
        ("a stranger stays", beat(group, 1)),
        ("a stranger leaves", beat(group, -1)),
        ("a static stranger leaves", beat(group, -2, instance="i")),
        ("a static stranger stays", beat(group, 1, instance="i")),
        ("a member without an id stays", beat(group, 1, member="")),
    ):
        both.ask(BEAT, version, asked, what=what)
    if version >= 1:
        both.ask(BEAT, version, beat(group, 0, topics=[topic], member=""), what="a member without an id joins")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), what="after all")


@every_version(BEAT)
def test_epochs(version: int, both: Both, name: Names) -> None:
    group, topic = name(), created(both, name, 2)
    both.ask(BEAT, version, beat(group, 0, topics=[topic]), what="joins")
    for what, asked in (
        ("stays", beat(group, 2)),
        ("an older epoch", beat(group, 1)),
        ("a newer epoch", beat(group, 9)),
        ("a stranger", beat(group, 2, member=SECOND)),
        ("another instance", beat(group, 2, instance="i")),
        ("another assignor", beat(group, 2, server_assignor="range")),
        ("an assignor of nobody", beat(group, 2, server_assignor="sticky")),
        ("owns what it has", beat(group, 2, owned=(topic, (0, 1)))),
        ("says all again", beat(group, 2, topics=[topic], owned=(topic, (0, 1)))),
        ("joins again", beat(group, 0, topics=[topic])),
        ("a stranger leaves", beat(group, -1, member=SECOND)),
        ("a static stranger leaves", beat(group, -2, instance="i")),
    ):
        both.ask(BEAT, version, asked, what=what)
        both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), what=f"after: {what}")
    both.ask(BEAT, version, beat(group, 0, topics=[topic], member=SECOND), what="another joins", on="second")
    for what, asked in (
        ("has to give up one", beat(group, 2)),
        ("goes on with its epoch", beat(group, 2, owned=(topic, (0, 1)))),
        ("has given up one", beat(group, 2, owned=(topic, (0,)))),
        ("has lost the answer", beat(group, 2, owned=(topic, (0,)))),
        ("has lost the answer, and owns too much", beat(group, 2, owned=(topic, (0, 1)))),
        ("has lost the answer, and does not say what it owns", beat(group, 2)),
    ):
        both.ask(BEAT, version, asked, what=what)
        both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), what=f"after: {what}")
    both.ask(BEAT, version, beat(group, -1), what="leaves")
    both.ask(BEAT, version, beat(group, -1), what="leaves again")
    both.ask(BEAT, version, beat(group, 3), what="stays after it has left")
    both.ask(BEAT, version, beat(group, -1, member=SECOND), what="the last leaves", on="second")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), what="empty")


@every_version(BEAT)
def test_static_members(version: int, both: Both, name: Names) -> None:
    group, topic = name(), created(both, name, 2)
    both.ask(BEAT, version, beat(group, 0, topics=[topic], instance="i"), what="joins")
    taking_over = beat(group, 0, topics=[topic], instance="i", member=SECOND)
    for what, asked in (
        ("the place is taken", taking_over),
        ("by another member", beat(group, 2, instance="i", member=SECOND)),
        ("by an unknown instance", beat(group, 2, instance="j")),
        ("another leaves in its name", beat(group, -2, instance="i", member=SECOND)),
        ("another leaves for good in its name", beat(group, -1, instance="i", member=SECOND)),
        ("goes away for a while", beat(group, -2, instance="i")),
        ("stays while it is away", beat(group, 2, instance="i")),
        ("another takes its place", taking_over),
        ("the former one stays", beat(group, 2, instance="i")),
        ("the former one leaves", beat(group, -2, instance="i")),
        ("the former one joins again", beat(group, 0, topics=[topic], instance="i")),
        ("the new one stays", beat(group, 2, instance="i", member=SECOND)),
        ("the new one leaves for good", beat(group, -1, instance="i", member=SECOND)),
    ):
        both.ask(BEAT, version, asked, what=what)
        both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), what=f"after: {what}")


def test_expressions_that_are_none(both: Both, name: Names) -> None:
    group = name()
    for regex in ("[", "(", "*", "a{2,1}", "(?<name", "\\", "a**", "(?=a)", "\\1"):
        both.ask(BEAT, 1, beat(group, 0, subscribed_topic_regex=regex, rebalance_timeout=1000), what=f"joins: {regex}")
    both.ask(BEAT, 1, beat(group, 0, topics=["no-such-topic"]), what="joins")
    both.ask(BEAT, 1, beat(group, 1, subscribed_topic_regex="["), what="stays")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), what="after all")


EXPRESSIONS = (
    # What is RE2's, and what is not.
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


ONLY_KAFKAS = ("(a{100}){11}", "((a{100}){100}){100}", "(?:a{1000}){1000}", r"\é")
"""RE2 in C++ does not repeat more than a thousand times in all; Java's does, and takes gigabytes for it."""


@pytest.mark.parametrize("regex", EXPRESSIONS)
def test_what_is_an_expression(regex: str, both: Both, name: Names) -> None:
    both.send(BEAT, 1, beat(name(), 0, subscribed_topic_regex=regex, rebalance_timeout=1000))
    # Only Headrace finds the topics of an expression before it answers.
    both.receive(BEAT, 1, only=lambda answer: {each: answer[each] for each in ("error_code", "error_message")})


@pytest.mark.parametrize("regex", ONLY_KAFKAS)
def test_what_is_an_expression_with_kafka_alone(regex: str, both: Both, name: Names) -> None:
    both.send(BEAT, 1, beat(name(), 0, subscribed_topic_regex=regex, rebalance_timeout=1000))
    answers = both.receive(BEAT, 1, only=lambda answer: None)
    assert answers.kafka["error_code"] == "none"
    assert answers.headrace["error_code"] == "invalid_regular_expression"


@every_version(BEAT)
def test_a_full_group(version: int, both: Both, name: Names) -> None:
    group, topic = name(), created(both, name, 2)
    for member in (FIRST, SECOND, THIRD, FOURTH):
        both.ask(BEAT, version, beat(group, 0, topics=[topic], member=member), what=f"{member} joins")
    both.ask(BEAT, version, beat(group, 0, topics=[topic], member=THIRD), what="one of them again")
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe(group), what="full")
    both.ask(BEAT, version, beat(group, -1, member=FIRST), what="one leaves")
    both.ask(BEAT, version, beat(group, 0, topics=[topic], member=FOURTH), what="another joins")


@every_version(ApiKey.OFFSET_COMMIT, since=5)
def test_commits(version: int, both: Both, name: Names) -> None:
    group, topic = name(), created(both, name, 2)
    both.ask(BEAT, 1, beat(group, 0, topics=[topic]), what="joins")
    for what, fields in (
        ("good", {"member": FIRST, "generation": 2}),
        ("an older epoch", {"member": FIRST, "generation": 1}),
        ("a newer epoch", {"member": FIRST, "generation": 9}),
        ("no epoch", {"member": FIRST}),
        ("a stranger", {"member": SECOND, "generation": 2}),
        ("nobody", {}),
    ):
        both.ask(ApiKey.OFFSET_COMMIT, version, commit(group, topic, (0, 7, ""), **fields), what=what)
    both.ask(BEAT, 1, beat(group, -1), what="leaves")
    late = commit(group, topic, (0, 7, ""), member=FIRST, generation=2)
    both.ask(ApiKey.OFFSET_COMMIT, version, late, what="after it has left")


@every_version(ApiKey.OFFSET_FETCH, since=8)
def test_fetches(version: int, both: Both, name: Names) -> None:
    group, topic = name(), created(both, name, 2)
    both.ask(BEAT, 1, beat(group, 0, topics=[topic]), what="joins")
    both.ask(ApiKey.OFFSET_COMMIT, 9, commit(group, topic, (0, 7, ""), member=FIRST, generation=2))
    for what, member, epoch in (
        ("good", FIRST, 2),
        ("an older epoch", FIRST, 1),
        ("a newer epoch", FIRST, 9),
        ("no epoch", FIRST, -1),
        ("a stranger", SECOND, 2),
        ("a stranger without an epoch", SECOND, -1),
        ("an epoch without a member", None, 2),
        ("nobody", None, -1),
    ):
        both.ask(ApiKey.OFFSET_FETCH, version, fetch(group, topic, member, epoch), what=what)
        both.ask(ApiKey.OFFSET_FETCH, version, fetch(group, None, member, epoch), what=f"{what}, all topics")


def fetch(group: str, topic: str | None, member: str | None, epoch: int) -> Asked:
    def message(side: Side) -> dict[str, Any]:
        topics = None
        if topic is not None:
            topics = [{"name": topic, "topic_id": side.topic_id(topic), "partition_indexes": [0, 1]}]
        asked = {"group_id": group, "topics": topics, "member_id": member, "member_epoch": epoch}
        return {"groups": [asked], "require_stable": False}

    return message


@every_version(ApiKey.CONSUMER_GROUP_DESCRIBE)
def test_groups_are_described(version: int, both: Both, name: Names) -> None:
    group, topic = name(), created(both, name, 2)
    both.ask(BEAT, 1, beat(group, 0, topics=[topic], rack_id="r", instance="i"), what="joins")
    for what, groups in (
        ("one", [group]),
        ("unknown", ["no-such-group"]),
        ("no name", [""]),
        ("several", [group, "no-such-group", ""]),
        ("twice", [group, group]),
        ("none", []),
    ):
        for operations in (False, True):
            asked = {**describe(*groups), "include_authorized_operations": operations}
            both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, version, asked, what=f"{what}, operations: {operations}")
