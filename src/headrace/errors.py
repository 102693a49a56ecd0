"""Kafka's error codes and the exception that carries one to whoever can answer the client.

Codes are those of the protocol guide (https://kafka.apache.org/protocol#protocol_error_codes).
"""

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError"]


class KafkaError(Exception):
    """A failure that has an answer in the protocol.

    `message` says why and what to do; it reaches the client in every response that has room for it.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
