"""The file `partition.metadata`: which topic id the directory's records belong to (KIP-516)."""

from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import read_file, replace_file
from headrace.wire.ids import id_to_text, text_to_id

FILE_NAME: Final = "partition.metadata"


def read_topic_id(directory: Path) -> UUID | None:
    """None where there is no file, as in logs older than Kafka 2.8, or one of nothing, as a power failure leaves it.

    Raises KafkaError: inconsistent_topic_id when the file makes no sense, kafka_storage_error when it cannot be read.
    """
    path = directory / FILE_NAME
    try:
        text = read_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KafkaError(ErrorCode.kafka_storage_error, f"cannot read {path}: {error}") from error
    if not text.strip("\0"):
        return None  # a file may be there, and be as long as it was, before what was written to it is
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
    """Without `sync` a power failure may leave the file out, or empty; its reader takes both for the same."""
    replace_file(directory / FILE_NAME, f"version: 0\ntopic_id: {id_to_text(topic_id)}".encode(), sync=sync)
