"""Failures of commands: an exception with the reason and a hint, and texts for Kafka's errors.

Exit codes: 0 success, 1 failure, 2 usage error, 3 cluster not in the expected state, 130 stopped with Ctrl-C.
"""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

FAILED = 1
USAGE = 2
UNHEALTHY = 3
INTERRUPTED = 130


class CommandError(Exception):
    """Ends the command: `what` says what is wrong, and the optional `hint` what to do."""

    def __init__(self, what: str, hint: str | None = None, exit_code: int = FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.exit_code = exit_code


class NoReplyError(CommandError):
    """No broker replied. A separate class, so that callers can tell it from an error of one group or topic."""


def usage_error(what: str, hint: str | None = None) -> CommandError:
    """Return the error for invalid options, or for options that cannot be combined (exit code 2)."""
    return CommandError(what, hint, USAGE)


def missing_partition(topic: str, number: int, highest: int, advice: str = "") -> CommandError:
    """Return the error for a partition that does not exist in a topic whose partitions are 0 to `highest`."""
    known = f"partitions 0 to {highest}" if highest else "only partition 0"
    return CommandError(f"topic '{topic}' has no partition {number}", f"It has {known}.{advice}")


def missing_topic(topic: str, bootstrap: str, known: Iterable[str], create: str | None = None) -> CommandError:
    """Return the error for a topic that does not exist. If no name is similar, the hint ends with `create`.

    `create` is a clause that says how to create the topic, by default with `headrace topics create`.
    """
    create = create or f"create it with `headrace topics create {topic}`."
    matches = difflib.get_close_matches(topic, list(known), n=3, cutoff=0.6)
    if matches:
        hint = f"Did you mean {_either(matches)}? `headrace topics list` shows all topics."
    else:
        hint = f"`headrace topics list` shows all topics; {create}"
    return CommandError(f"topic '{topic}' does not exist at {bootstrap}", hint)


def refused(error: "KafkaError", bootstrap: str, doing: str) -> CommandError:
    """Convert an error that a broker or the client library reported while `doing` something ('creating topic x')."""
    name = error.name().lstrip("_")
    hint = _HINTS.get(name)
    if name in ("TIMED_OUT", "TRANSPORT", "ALL_BROKERS_DOWN", "MSG_TIMED_OUT", "TIMED_OUT_QUEUE"):
        return NoReplyError(
            f"{doing}: no reply from {bootstrap}",
            hint or "Is it a Kafka broker, and are the addresses it advertises reachable from here?",
        )
    return CommandError(f"{doing}: {_sentence(error)} ({name})", hint)


_HINTS = {
    "MSG_SIZE_TOO_LARGE": "The topic's max.message.bytes is the limit; `headrace topics alter` raises it.",
    "INVALID_REPLICATION_FACTOR": "The replication factor cannot exceed the number of brokers.",
    "LEADER_NOT_AVAILABLE": "A partition has no leader: `headrace cluster` shows it, and which brokers are missing.",
    "UNKNOWN_PARTITION": "`headrace topics describe TOPIC` shows its partitions.",
    "TOPIC_AUTHORIZATION_FAILED": "The cluster's ACLs do not permit this operation on the topic.",
    "CLUSTER_AUTHORIZATION_FAILED": "The cluster's ACLs do not permit this operation on the cluster.",
    "GROUP_AUTHORIZATION_FAILED": "The cluster's ACLs do not permit this operation on the group.",
    "NOT_ENOUGH_REPLICAS": "Fewer replicas are in sync than the topic's min.insync.replicas requires.",
}


def _sentence(error: "KafkaError") -> str:
    text = error.str().removeprefix("Broker: ").removeprefix("Local: ").strip().rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _either(names: list[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
