"""The file `partition.metadata`: the id of the topic that owns the directory's records (KIP-516)."""

from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import read_file, replace_file
from headrace.wire.ids import id_to_text, text_to_id

FILE_NAME: Final = "partition.metadata"


def read_topic_id(directory: Path) -> UUID | None:
    """Return the id; None if the file is missing (logs from before Kafka 2.8) or empty (after a power failure).

    Raises KafkaError: inconsistent_topic_id for a malformed file, kafka_storage_error for an unreadable one.
    """
    path = directory / FILE_NAME
    try:
        text = read_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {path}: {error}") from error
    if not text.strip("\0"):
        return None  # a power failure can leave zeros: the file's length is on disk before its content
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        if fields["version"] != "0":
            raise ValueError(f"version {fields['version']}")
        return text_to_id(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise KafkaError(
            ErrorCode.inconsistent_topic_id,
            f"{path} is malformed ({error}): restore it, or remove it (rm {path}) and restart the broker, which then"
            " writes the topic's id again",
        ) from None


def write_topic_id(directory: Path, topic_id: UUID, *, sync: bool = True) -> None:
    """Write the file. Without `sync`, a power failure may leave it missing or empty, which `read_topic_id` accepts."""
    replace_file(directory / FILE_NAME, f"version: 0\ntopic_id: {id_to_text(topic_id)}".encode(), sync=sync)
