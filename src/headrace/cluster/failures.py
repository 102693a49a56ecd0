"""Turn failures of the metadata store into errors for clients, and log a lasting failure once."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cluster.store import MalformedNodeError, StoreError, StoreLockedError, StoreUnavailableError
from headrace.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)


class StoreFailures:
    """Converts failures of a store to KafkaErrors. Its writers share one object, so that a failure is logged once."""

    def __init__(self) -> None:
        self._failure: str | None = None

    @contextmanager
    def answering(
        self,
        locked: ErrorCode = ErrorCode.not_controller,
        failed: ErrorCode = ErrorCode.kafka_storage_error,
    ) -> Iterator[None]:
        """Raise a KafkaError for a failure of the store, and log the failure unless it was the last one logged.

        `locked` is the code for a store that another process has locked. Admin clients retry after NOT_CONTROLLER, but
        after few other errors: see docs/decisions/076-failures-of-the-store.md.
        """
        try:
            yield
        except StoreError as error:
            text = str(error)
            if not isinstance(error, StoreUnavailableError | MalformedNodeError):  # these say what to do
                text += ". Another process changed the metadata: restart the broker."
            if text != self._failure:
                self._failure = text
                log.error("Topics and settings cannot be changed: %s", text)
            code = locked if isinstance(error, StoreLockedError) else failed
            raise KafkaError(code, f"Nothing was changed: {text}") from error

    def note_written(self) -> None:
        """Log the end of a failure after a successful write."""
        if self._failure is not None:
            self._failure = None
            log.info("Topics and settings can be changed again")
