"""Metrics of the controller in a cluster with ZooKeeper.

On other brokers, the gauges of the cluster's state are 0. Counters and times include this broker's earlier terms.
"""

from collections.abc import Iterable
from typing import Final

from headrace.cluster.offices.candidate import Candidate
from headrace.cluster.offices.event_queue import Timing
from headrace.metrics import Family, gauge

_ELECTIONS: Final = ("brokers", "take office", "controlled shutdown", "election", "balance", "unclean election")
"""Events in which the controller may elect leaders."""
_QUANTILES: Final = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")
"""The quantiles that Kafka exports."""


def controller(candidate: Candidate) -> Iterable[Family]:
    """Yield the state of the cluster, and statistics of the controller's events."""
    term = candidate.term
    context = None if term is None else term.machine.context
    yield gauge(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        "Partitions that are not led by their preferred replica.",
        0 if context is None else context.imbalance_count(),
    )
    yield gauge(
        "kafka_controller_kafkacontroller_topicstodeletecount",
        "Topics that are being deleted.",
        0 if context is None else len(context.deleting),
    )
    yield gauge(
        "headrace_controller_moving_partitions",
        "Partitions whose replicas are being reassigned.",
        0 if context is None else len(context.moving),
    )
    yield Family(
        "kafka_controller_controllerstats_uncleanleaderelections",
        "Leaders that this broker, as controller, elected from outside the in-sync replicas.",
        [({}, candidate.unclean_elections)],
        "counter",
    )
    handled = candidate.figures.handled
    elections = [handled[name] for name in _ELECTIONS if name in handled]
    yield Family(
        "kafka_controller_controllerstats_leaderelectionrateandtimems_count",
        "Handled controller events of the kinds that elect leaders.",
        [({}, sum(timing.count for timing in elections))],
    )
    yield _quantiles(
        "kafka_controller_controllerstats_leaderelectionrateandtimems",
        "Handling time in ms of the latest controller events of the kinds that elect leaders.",
        elections,
    )
    yield Family(
        "headrace_controller_election_seconds",
        "Total handling time of controller events of the kinds that elect leaders, including writes to ZooKeeper.",
        [({}, sum(timing.total_s for timing in elections))],
        "counter",
    )
    yield gauge(
        "kafka_controller_controllereventmanager_eventqueuesize",
        "Events in the controller's queue.",
        0 if term is None else len(term.queue),
    )
    waited = candidate.figures.waited
    yield _quantiles(
        "kafka_controller_controllereventmanager_eventqueuetimems",
        "Time in ms that the latest events waited in the controller's queue.",
        [waited],
    )
    yield gauge(
        "kafka_controller_controllereventmanager_eventqueuetimems_count",
        "Events that have waited in the controller's queue.",
        waited.count,
    )
    yield Family(
        "headrace_controller_queue_seconds",
        "Total time that events have waited in the controller's queue.",
        [({}, waited.total_s)],
        "counter",
    )
    yield Family(
        "headrace_controller_events",
        "Events that the controller has handled.",
        [({"event": name}, timing.count) for name, timing in sorted(handled.items())],
        "counter",
    )
    yield Family(
        "headrace_controller_unanswered_orders",
        "Requests of the controller to which the broker has not responded.",
        [] if term is None else [({"broker": str(broker)}, size) for broker, size in term.channels.waiting.items()],
    )


def _quantiles(name: str, help: str, timings: Iterable[Timing]) -> Family:
    """Return the quantiles that Kafka exports, in ms; zeros if there are no times."""
    times = sorted(seconds for timing in timings for seconds in timing.latest_s) or [0.0]
    last = len(times) - 1
    return Family(name, help, [({"quantile": share}, times[round(float(share) * last)] * 1000) for share in _QUANTILES])
