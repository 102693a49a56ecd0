"""Ids of topics, directories, clusters and members as Kafka prints them: UUIDs in 22 characters of URL-safe base64."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID, uuid4


def id_to_text(identity: UUID) -> str:
    return urlsafe_b64encode(identity.bytes).rstrip(b"=").decode()


def text_to_id(text: str) -> UUID:
    """Parse Kafka's URL-safe Base64 form of an id. Raises ValueError."""
    return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def new_id() -> UUID:
    """Return a random id whose text does not begin with a dash, which would look like a command-line option."""
    while id_to_text(identity := uuid4()).startswith("-"):
        pass
    return identity
