"""What a metric is: a family of samples under one name. Rooms describe theirs; `monitoring/http.py` shows them.

Names are those that the Prometheus JMX exporter gives Kafka's under the rules of its Kafka example; what Kafka does not
have begins with `headrace_`. Nothing is counted here: a collector looks at the state that there is.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Samples: TypeAlias = Iterable[tuple[Mapping[str, str], float]]
"""Labels and value of each."""


class Family(NamedTuple):
    """All samples of one metric; times in the unit that the name ends with. Where they are many, a function that gives
    them: it is called in a thread, and looks only at what nobody changes meanwhile.

    The name of a counter comes without the `_total` that Prometheus sees at its end.
    """

    name: str
    help: str
    samples: Samples | Callable[[], Samples]
    kind: Literal["gauge", "counter"] = "gauge"


Collector: TypeAlias = Callable[[], Iterable[Family]]
"""Called on the event loop for each scrape: looks, and does not wait."""


def gauge(name: str, help: str, value: float) -> Family:
    """A gauge with one sample and no labels."""
    return Family(name, help, [({}, value)])
