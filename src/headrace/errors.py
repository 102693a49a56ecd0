"""Kafka's error codes and the exception that carries one to whoever can answer the client.

Codes are those of the protocol guide (https://kafka.apache.org/protocol#protocol_error_codes).
"""

import sys

if "hypothesis" not in sys.modules:
    # kio registers strategies with Hypothesis wherever that is installed, at the price of 0.5 s and 15 MB. A name that
    # is None in sys.modules cannot be imported: kio then goes on without. This module is the first to import kio.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    import kio.static.primitive  # noqa: F401  the module that looks for Hypothesis

    del sys.modules["hypothesis"]

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
