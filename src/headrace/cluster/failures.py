"""Failures of the metadata store as answers to clients, logged once for as long as they last."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cluster.store import StoreError, StoreLockedError, StoreUnavailableError
from headrace.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)


class StoreFailures:
    """One for all who write to a store."""

    def __init__(self) -> None:
        self._failure: str | None = None

    @contextmanager
    def answering(
        self,
        locked: ErrorCode = ErrorCode.not_controller,
        failed: ErrorCode = ErrorCode.kafka_storage_error,
    ) -> Iterator[None]:
        """Make a failure of the store a KafkaError, and log it once for as long as it lasts.

        `locked` is for a store that another process has locked. Admin clients try again by themselves after
        NOT_CONTROLLER, and after hardly anything else: see docs/decisions/076-failures-of-the-store.md.
        """
        try:
            yield
        except StoreError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                log.error("Topics and settings cannot be changed: %s", error)
            if isinstance(error, StoreUnavailableError):
                code = locked if isinstance(error, StoreLockedError) else failed
                raise KafkaError(code, f"Nothing was changed: {error}") from error
            raise KafkaError(
                failed, f"Nothing was changed: {error}. The metadata was changed by somebody else: restart the broker."
            ) from error

    def note_written(self) -> None:
        """Something was written: the failure is over."""
        if self._failure is not None:
            self._failure = None
            log.info("Topics and settings can be changed again")
