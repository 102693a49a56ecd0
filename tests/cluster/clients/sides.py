"""One side of the mixed cluster as the broker under test."""

from pathlib import Path
from typing import Final

from tests.clients.drivers.contract import ClientDriver
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

    def waits_for_topics(self, driver: ClientDriver) -> ClientDriver:
        """Make `create_topic` wait until all brokers know the topic: not every client waits before it uses one."""
        create = driver.create_topic

        def create_topic(topic: str, partitions: int) -> None:
            create(topic, partitions)
            self._cluster.wait_for_topic(topic, partitions)

        driver.create_topic = create_topic  # type: ignore[method-assign]
        return driver

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
