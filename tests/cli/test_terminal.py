"""Output on a terminal, 80 columns wide."""

import re
from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, Producer

from headrace.testing import Broker
from tests.cli.conftest import Headrace
from tests.cli.terminal import shown, styled
from tests.support.ports import free_port
from tests.support.topics import create_topic
from tests.support.waiting import wait_for


def test_a_table_is_aligned_and_numbers_are_grouped(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    headrace("produce", topic, "-p", "1", stdin="x\n" * 1500)
    lines = [line.rstrip() for line in shown(environment, "topics", "describe", topic)]
    assert f"Topic        {topic}" in lines
    assert "Records      1,500" in lines
    [header] = [line for line in lines if line.startswith("Partition   ")]
    [last] = [line for line in lines if re.match(r" +1 ", line)]
    assert last.index("1,500") + len("1,500") == header.index("Latest") + len("Latest")
    assert len(last) == len(header) <= 80


def test_a_group_fits_the_terminal(headrace: Headrace, topic: str, environment: Mapping[str, str]) -> None:
    headrace("produce", topic, "-p", "1", stdin="x\n" * 1500)
    group = f"{topic}-group"
    headrace("groups", "reset", group, "--to", "earliest", "--topic", topic, "--execute")
    lines = [line.rstrip() for line in shown(environment, "groups", "describe", group)]
    assert "Lag           1,500" in lines
    assert max(map(len, lines)) <= 80
    [row] = [line for line in lines if re.match(rf"{topic} +1 ", line)]
    assert re.search(r" 0 +1,500 +1,500 +\S+ m?s$", row)
    assert shown(environment, "groups", "delete", group, typed="y\n")[-1].endswith(f"[y/N]: Deleted group {group}")


@pytest.mark.slow
def test_long_names_of_groups_fit_the_terminal(environment: Mapping[str, str]) -> None:
    port = free_port()
    name = "settlement-reconciliation-service.production.europe-west-4"
    topic = f"payments.transactions.{name}.v2"
    with Broker({"headrace.http.listener": f"127.0.0.1:{port}"}) as broker:
        own_environment = {**environment, "HEADRACE_BOOTSTRAP": broker.bootstrap}
        create_topic(broker.bootstrap, topic, 6)
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": name}
        members = [Consumer({**settings, "client.id": f"{name}-7f9c6d5b8-x{number}"}) for number in range(4)]
        try:
            for member in members:
                member.subscribe([topic])

            def assigned() -> bool:
                for member in members:
                    member.poll(0.05)  # each of them: a member that is not polled holds up the rebalance of the others
                return all(member.assignment() for member in members)

            wait_for(assigned, "assignments")
            for words in (
                ("list", "--lag"),
                ("describe", name),
                ("timeline", name),
                ("timeline", name, "--rebalances"),
                ("reset", name, "--to", "latest", "--topic", topic),
            ):
                lines = shown(own_environment, "groups", *words)
                assert max(map(len, lines)) <= 80, words
                # A name is whole or shortened in the middle, and never wraps.
                pieces = {piece.rstrip(",;:") for line in lines for piece in line.split() if len(piece) > 20}
                assert all("…" in piece or piece in (name, topic) for piece in pieces), words
        finally:
            for member in members:
                member.close()


def test_deleting_asks_first(headrace: Headrace, topic: str, environment: Mapping[str, str]) -> None:
    refused = shown(environment, "topics", "delete", topic, typed="n\n", status=1)
    assert refused[0].startswith(f"Delete {topic} at ")
    assert topic in headrace("topics", "list").stdout
    agreed = shown(environment, "topics", "delete", topic, typed="y\n")
    assert agreed[-1].endswith(f"[y/N]: Deleted topic {topic}")
    assert topic not in headrace("topics", "list").stdout


def test_ctrl_c_at_a_question_interrupts_the_command(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    seen = shown(environment, "topics", "delete", topic, status=130, interrupt_at=b"[y/N]")
    assert "Traceback" not in "\n".join(seen)
    assert topic in headrace("topics", "list").stdout


def test_colours_can_be_disabled(topic: str, environment: Mapping[str, str]) -> None:
    for name, status, style in ((topic, 0, b"\x1b[1mTopic"), (f"no-{topic}", 1, b"\x1b[1;31m")):
        assert style in styled(environment, "topics", "describe", name, status=status)
        plain = styled({**environment, "NO_COLOR": "1"}, "topics", "describe", name, status=status)
        assert style not in plain


def test_an_unanswered_question_changes_nothing(topic: str, environment: Mapping[str, str]) -> None:
    assert shown(environment, "topics", "delete", topic, typed="\x04", status=1)[-1].endswith("Nothing was changed.")


def test_typed_input_starts_with_instructions(headrace: Headrace, topic: str, environment: Mapping[str, str]) -> None:
    seen = shown(environment, "produce", topic, typed="hello\n\x04")
    assert seen[0] == "Type one record per line; Ctrl-D ends the input."
    assert seen[1].startswith(f"1 record (5 B) to {topic}, partition ")
    assert headrace("consume", topic, "--until-end").stdout == "hello\n"


def test_control_characters_are_escaped(headrace: Headrace, topic: str, environment: Mapping[str, str]) -> None:
    headrace("produce", topic, stdin="\x1b[2Jgone\x07\n")
    assert shown(environment, "consume", topic, "--until-end")[0] == "\\x1b[2Jgone\\x07"
    assert headrace("consume", topic, "--until-end").stdout == "\x1b[2Jgone\x07\n"


def test_errors_wrap_between_words(topic: str, environment: Mapping[str, str]) -> None:
    lines = shown(environment, "topics", "list", "--bootstrap", "127.0.0.1:1", status=1)
    assert lines[0] == "Error: nothing is listening on 127.0.0.1:1"
    assert " ".join(line.strip() for line in lines[1:]).endswith("with --bootstrap or HEADRACE_BOOTSTRAP.")
    assert all(len(line) <= 80 for line in lines)


def test_a_long_list_of_transactions_fits_the_terminal(environment: Mapping[str, str], bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{'long-' * 20}name"})
    producer.init_transactions(30)
    header, *rows = shown(environment, "transactions", "list", "--long", "--pattern", "long-.*")
    assert header.split() == ["Transactional", "id", "Producer", "State", "Age", "Timeout", "Partitions"]
    assert [len(row) <= 80 and "…" in row for row in rows] == [True]
