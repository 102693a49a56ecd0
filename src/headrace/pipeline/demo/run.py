"""Run the demo: broker, shipper, queries, report. Everything is stopped at the end, also after errors."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from headrace.pipeline.demo.processes import BrokerProcess, DriverProcess, is_broker
from headrace.pipeline.demo.shipper import Shipper
from headrace.pipeline.demo.sources import Source
from headrace.pipeline.demo.state import DemoState, JobState
from headrace.pipeline.demo.top_pages import TopPagesReader
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.topics import ACCESS_LOG, TOP_PAGES, Topics

_PARTITIONS: Final = 3
_LOOK_S: Final = 0.25
_RESTARTS: Final = 5
_END_S: Final = 10.0
# Records have the timestamps of old lines, and must not expire.
_TOPIC_CONFIG: Final = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The options of a run. `bootstrap` is an existing cluster, or None to start a broker."""

    source: Source
    data: Path
    bootstrap: str | None
    prefix: str


class Demo:
    """One run. `show` is called with the state several times a second, and must be quick."""

    def __init__(self, plan: DemoPlan, show: Callable[[DemoState], None]) -> None:
        self._plan = plan
        self._show = show
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> tuple[DemoState, dict[str, Any]]:
        """Run until the report. Raises `PipelineError` if that fails, `KeyboardInterrupt` if stopped."""
        plan = self._plan
        with contextlib.ExitStack() as stack:
            broker = self._broker(stack)
            bootstrap = broker.bootstrap if broker else plan.bootstrap or ""
            topic = self._create_topic(bootstrap)
            source = plan.source
            state = DemoState(source=source.name, bootstrap=bootstrap, data=plan.data, expected=source.expected)
            self._show(state)
            self._driver = self._start_driver(bootstrap)
            stack.callback(self._stop_driver)
            shipping = self._ship(Shipper(bootstrap, topic), state)
            stack.callback(shipping.join, _END_S)
            stack.callback(self._stop.set)
            top_pages = stack.enter_context(contextlib.closing(TopPagesReader(bootstrap, plan.prefix + TOP_PAGES)))
            stack.push(partial(self._show_stopping, state))
            finishing = False
            while True:
                if broker:
                    broker.check()
                if self._failure is not None:
                    raise self._failure
                for event in self._driver.events():
                    if event["event"] == "report":
                        return state, event
                    _apply(event, state, plan.data)
                ended = self._driver.ended()
                if ended is not None:
                    self._driver = self._restart(ended, bootstrap, state)
                    finishing = False
                if not finishing and not shipping.is_alive() and self._failure is None:
                    self._driver.finish()
                    finishing = True
                    state.doing = "everything is shipped; the queries are processing the rest"
                top_pages.read(state)
                self._show(state)
                time.sleep(_LOOK_S)

    def _show_stopping(self, state: DemoState, kind: type[BaseException] | None, *_: object) -> None:
        """Show that the demo is stopping, which takes a moment."""
        if kind is not None:
            state.doing = "stopping"
            self._show(state)

    def _broker(self, stack: contextlib.ExitStack) -> BrokerProcess | None:
        plan = self._plan
        if plan.bootstrap is None:
            broker = BrokerProcess(plan.data / "broker", plan.data / "logs" / "broker.log")
            stack.callback(broker.stop)
            return broker
        if not is_broker(plan.bootstrap):
            raise PipelineError(
                f"no broker answers at {plan.bootstrap}. Start one, or leave out --bootstrap to use a new one."
            )
        return None

    def _create_topic(self, bootstrap: str) -> str:
        topics, name = Topics(bootstrap), self._plan.prefix + ACCESS_LOG
        topics.create(name, partitions=_PARTITIONS, config=_TOPIC_CONFIG)
        present = topics.record_count(name)
        if present:
            raise PipelineError(
                f"topic {name} at {bootstrap} already has {present:,} records, which the demo would count. "
                "Use other names with --prefix, or delete the topic."
            )
        return name

    def _start_driver(self, bootstrap: str) -> DriverProcess:
        plan = self._plan
        return DriverProcess(bootstrap, plan.data, plan.prefix, plan.data / "logs" / "spark.log")

    def _stop_driver(self) -> None:
        """Stop the current driver, which may have been restarted."""
        self._driver.stop()

    def _restart(self, ended: str, bootstrap: str, state: DemoState) -> DriverProcess:
        """Restart a killed driver, which continues from its checkpoints. One that failed has sent `failed` instead."""
        state.restarts += 1
        if state.restarts > _RESTARTS:
            raise PipelineError(
                f"Spark exited {state.restarts} times ({ended}). Its log is {self._plan.data / 'logs' / 'spark.log'}"
            )
        state.doing = f"Spark exited ({ended}); restarting from its checkpoints"
        for job in state.jobs.values():
            job.earlier_out = job.records_out
        return self._start_driver(bootstrap)

    def _ship(self, shipper: Shipper, state: DemoState) -> threading.Thread:
        def ship() -> None:
            try:
                for line in self._plan.source.lines(self._stop):
                    shipper.ship(line)
                    state.shipped = shipper.acknowledged
                shipper.flush()
                state.shipped = shipper.acknowledged
            except (PipelineError, KafkaException, OSError) as error:
                self._failure = error  # raised by `run`

        thread = threading.Thread(target=ship, name="shipper", daemon=True)
        thread.start()
        return thread


def _apply(event: dict[str, Any], state: DemoState, data: Path) -> None:
    match event["event"]:
        case "ready":
            state.doing = "the queries are running"
            for name in event["jobs"]:
                state.jobs.setdefault(name, JobState())
        case "progress":
            job = state.jobs.setdefault(event["job"], JobState())
            job.batch = event["batch"]
            job.records_in = sum(event["offsets"].values())
            job.records_out = job.earlier_out + event["published"]
        case "failed":
            raise PipelineError(f"the queries failed: {event['reason']}. Spark's log is {data / 'logs' / 'spark.log'}")
        case other:
            log.warning("Unknown event from the driver: %s", other)
