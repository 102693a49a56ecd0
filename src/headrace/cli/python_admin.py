"""kafka-python's admin client, for the requests that confluent-kafka lacks. Failures are CommandErrors."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from headrace.cli.cluster import REQUEST_TIMEOUT_S, Cluster
from headrace.cli.failures import CommandError

T = TypeVar("T")

_TIMEOUT_MS = round(REQUEST_TIMEOUT_S * 1000)
_PAUSE_S = 0.1


@contextlib.contextmanager
def python_admin(cluster: Cluster, doing: str) -> Iterator[Any]:
    """Yield an admin client. Its errors become CommandErrors that begin with `doing` ('listing transactions')."""
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        admin = KafkaAdminClient(
            bootstrap_servers=cluster.bootstrap.split(","),
            client_id="headrace-cli",
            bootstrap_timeout_ms=_TIMEOUT_MS,
            request_timeout_ms=_TIMEOUT_MS,
        )
        try:
            yield admin
        finally:
            admin.close()
    except KafkaError as error:
        raise CommandError(f"{doing}: {getattr(error, 'message', '') or error} ({type(error).__name__})") from None


def until_coordinated(request: Callable[[], T]) -> T:
    """Return the result of `request`. Retry for up to REQUEST_TIMEOUT_S while coordinators are loading or moving."""
    from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return request()
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
