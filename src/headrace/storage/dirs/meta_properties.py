"""The file `meta.properties`: the cluster and the broker that own a log directory.

Brokers with ZooKeeper write version 0, those without it version 1 (KIP-631); both are read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.atomic_file import read_file, replace_file
from headrace.wire.ids import id_to_text, text_to_id

FILE_NAME: Final = "meta.properties"
_ID_KEY: Final = {0: "broker.id", 1: "node.id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Content of the file; None for missing fields."""

    version: int
    cluster_id: str | None
    broker_id: int | None
    directory_id: UUID | None


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """Return the content; None without a file. Raises OSError, and KafkaError(inconsistent_cluster_id) if malformed."""
    path = directory / FILE_NAME
    try:
        text = read_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            key, _, value = line.partition("=")
            fields[key.strip()] = value.strip().replace("\\", "")
    try:
        version = int(fields.get("version", "0"))
        broker_id = fields.get(_ID_KEY[version])
        directory_id = fields.get("directory.id")
        return MetaProperties(
            version=version,
            cluster_id=fields.get("cluster.id"),
            broker_id=None if broker_id is None else int(broker_id),
            directory_id=None if directory_id is None else text_to_id(directory_id),
        )
    except (KeyError, ValueError) as error:
        raise KafkaError(
            ErrorCode.inconsistent_cluster_id,
            f"{path} is malformed ({error}): it must have version=0 with broker.id or version=1 with node.id; "
            "restore it from a backup",
        ) from None


def stored_broker_id(directories: Iterable[Path]) -> int | None:
    """Return the broker id in the first of the directories that has one.

    Raises KafkaError as `read_meta_properties` does.
    """
    for directory in directories:
        try:
            properties = read_meta_properties(directory)
        except OSError:
            continue  # opening the directory reports the error
        if properties is not None and properties.broker_id is not None:
            return properties.broker_id
    return None


def write_meta_properties(directory: Path, properties: MetaProperties) -> None:
    lines = ["#"]
    if properties.broker_id is not None:
        lines.append(f"{_ID_KEY[properties.version]}={properties.broker_id}")
    if properties.directory_id is not None:
        lines.append(f"directory.id={id_to_text(properties.directory_id)}")
    lines.append(f"version={properties.version}")
    if properties.cluster_id is not None:
        lines.append(f"cluster.id={properties.cluster_id}")
    replace_file(directory / FILE_NAME, "\n".join([*lines, ""]).encode())
