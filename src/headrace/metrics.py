"""Metrics: families of samples under one name. Packages define theirs; `monitoring/http.py` exports them.

Kafka's metrics have the names that the Prometheus JMX exporter gives them with its example rules for Kafka; others
begin with `headrace_`. Nothing is counted here: a collector reads the current state.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Samples: TypeAlias = Iterable[tuple[Mapping[str, str], float]]
"""Labels and value of each sample."""


class Family(NamedTuple):
    """All samples of one metric. The name ends with the unit; `monitoring/http.py` adds `_total` to that of a counter.

    If there are many samples, `samples` is a function. It runs in a thread, while the state that it reads may change.
    """

    name: str
    help: str
    samples: Samples | Callable[[], Samples]
    kind: Literal["gauge", "counter"] = "gauge"


Collector: TypeAlias = Callable[[], Iterable[Family]]
"""Called on the event loop for each scrape; must not block."""


def gauge(name: str, help: str, value: float) -> Family:
    """Return a gauge with one sample and no labels."""
    return Family(name, help, [({}, value)])
