"""The JSON format of Kafka's `kafka-reassign-partitions`. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from headrace.cli.failures import CommandError
from headrace.cli.placement.state import Place

_ANY: Final = "any"
"""Log directory of a replica for which the broker chooses one."""
_MAX_NUMBER: Final = 2**31 - 1
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
"""Names that Kafka allows. Client libraries fail for other names, such as those with NUL."""
_SHOWN: Final = 40
_HINT: Final = "Use a plan from `headrace reassign plan --output FILE` or Kafka's kafka-reassign-partitions."


def written(replicas: Mapping[Place, tuple[int, ...]]) -> str:
    """Return the JSON text of a plan with these replicas."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": list(brokers), "log_dirs": [_ANY] * len(brokers)}
        for (topic, partition), brokers in sorted(replicas.items())
    ]
    lines = ",\n  ".join(json.dumps(partition, ensure_ascii=False) for partition in partitions)
    return f'{{"version": 1, "partitions": [\n  {lines}\n]}}\n' if lines else '{"version": 1, "partitions": []}\n'


def parsed(text: str, name: str) -> dict[Place, tuple[int, ...]]:
    """Parse a plan, and return the replicas of every partition; errors mention the file `name`. Raises CommandError."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{name} is not JSON: {error}", _HINT) from None
    if not isinstance(content, dict) or not isinstance(content.get("partitions"), list):
        raise CommandError(f"{name} has no list of partitions", _HINT)
    if content.get("version", 1) != 1:
        raise CommandError(f"{name} has version {content['version']}, but only version 1 is supported", _HINT)
    found: dict[Place, tuple[int, ...]] = {}
    for number, entry in enumerate(content["partitions"]):
        place, replicas = _entry(entry, f"{name}: entry {number + 1}")
        if place in found:
            raise CommandError(f"{name} has {place[0]}:{place[1]} twice", "Remove one of the two entries.")
        found[place] = replicas
    if not found:
        raise CommandError(f"{name} contains no partitions", "Check that this is the right file.")
    return found


def _is_number(value: Any) -> TypeGuard[int]:
    """Return True for a number that partitions and brokers may have."""
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _entry(entry: Any, where: str) -> tuple[Place, tuple[int, ...]]:
    if not isinstance(entry, dict):
        raise CommandError(f"{where} is not a JSON object", _HINT)
    topic, partition, replicas = entry.get("topic"), entry.get("partition"), entry.get("replicas")
    if not isinstance(topic, str) or not topic or not _is_number(partition):
        raise CommandError(f"{where} needs a topic name and a partition number from 0 to {_MAX_NUMBER}", _HINT)
    if not _TOPIC.fullmatch(topic):
        shown = topic if len(topic) <= _SHOWN else f"{topic[:_SHOWN]}..."
        raise CommandError(f"{where}: '{shown}' cannot be the name of a topic", _HINT)
    valid = isinstance(replicas, list) and all(map(_is_number, replicas))
    if not replicas or not valid:
        raise CommandError(f"{where} ({topic}:{partition}) needs a non-empty list of broker ids as replicas", _HINT)
    if len(set(replicas)) < len(replicas):
        raise CommandError(f"{where} ({topic}:{partition}) names a broker twice", "List every broker at most once.")
    if any(directory != _ANY for directory in entry.get("log_dirs", ())):
        raise CommandError(
            f"{where} ({topic}:{partition}) sets log_dirs, which this command does not support",
            'Remove "log_dirs" to let the brokers choose them, or use kafka-reassign-partitions.',
        )
    return (topic, partition), tuple(replicas)
