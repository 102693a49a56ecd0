"""One side of the mixed cluster as the broker under test."""

from pathlib import Path
from typing import Final

from tests.cluster.conftest import HEADRACE
from tests.cluster.mixed import MixedCluster

SIDES: Final = ("kafka", "headrace")


class Side:
    """The brokers of one kind, from which clients bootstrap. The data is that of all brokers.

    A kill hits Headrace, or the Kafka broker that is not the controller.
    """

    def __init__(self, cluster: MixedCluster, side: str) -> None:
        self._cluster = cluster
        self._victim = HEADRACE if side == "headrace" else max(cluster.kafkas)
        self.bootstrap = cluster.bootstraps[self._victim]

    @property
    def data(self) -> Path:
        return self._cluster.base

    def sigkill(self) -> None:
        if self._victim == HEADRACE:
            self._cluster.headrace.sigkill()
        else:
            self._cluster.kafkas[self._victim].sigkill()

    def start(self) -> None:
        if self._victim == HEADRACE:
            self._cluster.headrace.start()
        else:
            self._cluster.kafkas[self._victim].restart_after_a_kill()
        self._cluster.wait_until_complete()

    def close(self) -> None:
        """Do nothing, because other tests use the cluster."""
