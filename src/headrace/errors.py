"""Kafka's error codes, and the exception that carries one to the client.

The protocol guide lists the codes: https://kafka.apache.org/protocol#protocol_error_codes.
"""

import sys

if "hypothesis" not in sys.modules:
    # kio registers strategies with Hypothesis if it is installed, which costs 0.5 s and 15 MB. A module that is None in
    # sys.modules cannot be imported, so kio skips the registration. No module imports kio before this one.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    import kio.static.primitive  # noqa: F401  the module that looks for Hypothesis

    del sys.modules["hypothesis"]

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError"]


class KafkaError(Exception):
    """A failure with a Kafka error code.

    `message` gives the reason and what to do. The client receives it if the response has an error message field.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
