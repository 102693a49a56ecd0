"""The simulated worlds by name."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.simulation import history as group_history
from tests.simulation import world as group_world
from tests.simulation.cluster import history as cluster_history
from tests.simulation.cluster import world as cluster_world
from tests.simulation.transactions import history as transaction_history
from tests.simulation.transactions import world as transaction_world


class World(NamedTuple):
    history_of: Callable[[int], Any]
    play: Callable[..., Any]
    """Return the first broken promise in a history, or None."""
    explain: Callable[..., str]

    def failure(self, history: Any) -> str | None:
        """Return the explanation if the history breaks a promise."""
        violation = self.play(history)
        return None if violation is None else self.explain(history, violation)


WORLDS: Final = {
    "groups": World(group_history.history_of, group_world.play, group_world.explain),
    "transactions": World(transaction_history.history_of, transaction_world.play, transaction_world.explain),
    "cluster": World(cluster_history.history_of, cluster_world.play, cluster_world.explain),
}
