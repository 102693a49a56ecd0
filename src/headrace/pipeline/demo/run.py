"""Run the demo: broker, shipper, jobs, report. Everything is stopped at the end, even after an error."""

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException

from headrace.pipeline.demo.deployment import DemoJobs, demo_jobs
from headrace.pipeline.demo.following import Changelogs, Positions
from headrace.pipeline.demo.place import Place
from headrace.pipeline.demo.processes import BrokerProcess, DriverProcess, is_broker
from headrace.pipeline.demo.shipping.arrivals import median
from headrace.pipeline.demo.shipping.shipper import Shipper
from headrace.pipeline.demo.shipping.sources import Source
from headrace.pipeline.demo.state import DemoState, JobState
from headrace.pipeline.engine.topics import Topics
from headrace.pipeline.errors import PipelineError

_PARTITIONS: Final = 3
_LOOK_S: Final = 0.25
_RATE_OVER_S: Final = 5.0
_RESTARTS: Final = 5
_END_S: Final = 10.0
_PROGRESS: Final = "headrace.pipeline.progress"
_TOP_PAGES: Final = "top-pages"
# Records have the timestamps of old lines, and must not expire.
_TOPIC_CONFIG: Final = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The options of a run. `bootstrap` is an existing cluster; None starts a broker."""

    source: Source
    place: Place
    lake: str
    bootstrap: str | None
    prefix: str
    overrides: tuple[str, ...]


class Demo:
    """One run. `show` is called with the state several times a second, and must be quick."""

    def __init__(self, plan: DemoPlan, show: Callable[[DemoState], None]) -> None:
        self._plan = plan
        self._show = show
        self._stop = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> tuple[DemoState, dict[str, Any]]:
        """Run the demo, and return its state and report.

        Raises PipelineError, KafkaException or OSError if it fails, and KeyboardInterrupt if it is stopped.
        """
        plan = self._plan
        with contextlib.ExitStack() as stack:
            broker = self._broker(stack)
            bootstrap = broker.bootstrap if broker else plan.bootstrap or ""
            demo = demo_jobs(bootstrap=bootstrap, lake=plan.lake, prefix=plan.prefix, overrides=plan.overrides)
            shipper = Shipper(bootstrap, demo.topic, self._topic(bootstrap, demo.topic))
            state = self._state(demo, bootstrap, shipper)
            self._show(state)
            watch = stack.enter_context(contextlib.closing(_Watch(demo, bootstrap, state, shipper)))
            self._driver = self._start_driver(bootstrap)
            stack.callback(self._stop_driver)
            shipping = self._ship(shipper)
            stack.callback(shipping.join, _END_S)
            stack.callback(self._stop.set)
            stack.push(partial(self._show_stopping, state))
            finishing = False
            while True:
                if broker:
                    broker.check()
                if self._failure is not None:
                    raise self._failure
                for event in self._driver.events():
                    if event["event"] == "report":
                        watch.look()
                        return state, event
                    self._apply(event, state)
                ended = self._driver.ended()
                if ended is not None:
                    self._driver = self._restart(ended, bootstrap, state)
                    finishing = False
                if not finishing and not shipping.is_alive() and self._failure is None:
                    self._driver.finish()
                    finishing = True
                    state.doing = "everything is shipped; the jobs are processing the rest"
                watch.look()
                self._show(state)
                time.sleep(_LOOK_S)

    def _state(self, demo: DemoJobs, bootstrap: str, shipper: Shipper) -> DemoState:
        plan = self._plan
        return DemoState(
            source=plan.source.name,
            bootstrap=bootstrap,
            data=plan.place.directory,
            lake=plan.lake,
            expected=plan.source.expected,
            resumed=shipper.acknowledged,
            jobs={name: JobState(published=0 if name in demo.changelogs else None) for name in demo.jobs},
        )

    def _show_stopping(self, state: DemoState, kind: type[BaseException] | None, *_: object) -> None:
        """Show that the demo is stopping, which takes a moment."""
        if kind is not None:
            state.doing = "stopping"
            self._show(state)

    def _broker(self, stack: contextlib.ExitStack) -> BrokerProcess | None:
        plan = self._plan
        if plan.bootstrap is None:
            plan.place.record()
            broker = BrokerProcess(plan.place.broker, plan.place.logs / "broker.log")
            stack.callback(broker.stop)
            return broker
        if not is_broker(plan.bootstrap):
            raise PipelineError(
                f"no broker answers at {plan.bootstrap}. Start one, or omit --bootstrap: the demo then starts its own."
            )
        return None

    def _topic(self, bootstrap: str, name: str) -> Mapping[int, int]:
        """Create the topic if it does not exist, and return its end offsets.

        Raises PipelineError if a new demo finds records in it.
        """
        topics = Topics({"bootstrap.servers": bootstrap})
        topics.create(name, _TOPIC_CONFIG, partitions=_PARTITIONS)
        ends = topics.end_offsets([name])[name]
        present = sum(ends.values())
        if present and self._plan.place.is_new:
            raise PipelineError(
                f"topic {name} at {bootstrap} already has {present:,} records, which the demo would count. "
                "Continue the demo that wrote them with its --data, use other names with --prefix, or delete the topic."
            )
        self._plan.place.record()
        return ends

    def _start_driver(self, bootstrap: str) -> DriverProcess:
        plan = self._plan
        return DriverProcess(
            bootstrap,
            plan.lake,
            plan.place.logs / "spark.log",
            prefix=plan.prefix,
            overrides=plan.overrides,
            lines=plan.source.expected,
        )

    def _stop_driver(self) -> None:
        """Stop the driver that is running now: it may have replaced the first one."""
        self._driver.stop()

    def _restart(self, ended: str, bootstrap: str, state: DemoState) -> DriverProcess:
        """Restart a driver that exited without reporting a failure. It continues from its checkpoints."""
        state.restarts += 1
        if state.restarts > _RESTARTS:
            raise PipelineError(
                f"Spark exited {state.restarts} times ({ended}). See Spark's log: {self._plan.place.logs / 'spark.log'}"
            )
        state.doing = f"Spark exited ({ended}); restarting from its checkpoints"
        self._driver.stop()  # also its Java process, which may end a little later
        return self._start_driver(bootstrap)

    def _ship(self, shipper: Shipper) -> threading.Thread:
        def ship() -> None:
            try:
                for line in self._plan.source.lines(self._stop, shipper.is_present):
                    shipper.ship(line)
                shipper.flush()
            except (PipelineError, KafkaException, OSError) as error:
                self._failure = error  # raised by `run`

        thread = threading.Thread(target=ship, name="shipper", daemon=True)
        thread.start()
        return thread

    def _apply(self, event: dict[str, Any], state: DemoState) -> None:
        match event["event"]:
            case "ready":
                state.doing = "the jobs are running"
            case "drained":
                state.doing = "reading the results from the tables"
            case "failed":
                reason = event["reason"].rstrip(".")
                raise PipelineError(f"{reason}. See Spark's log: {self._plan.place.logs / 'spark.log'}")
            case other:
                log.warning("Unknown event from the driver: %s", other)


class _Watch:
    """Updates the state from the cluster: progress, positions and results."""

    def __init__(self, demo: DemoJobs, bootstrap: str, state: DemoState, shipper: Shipper) -> None:
        self._state = state
        self._shipper = shipper
        self._shipped: deque[tuple[float, int]] = deque()
        self._reached: dict[str, dict[int, int]] = {}
        prefix = demo.deployment.prefix
        progress, top_pages = prefix + _PROGRESS, prefix + _TOP_PAGES
        results = {topic: partial(self._result, name, topic == top_pages) for name, topic in demo.changelogs.items()}
        # Ignore the progress of an earlier run.
        self._topics = Changelogs(bootstrap, {**results, progress: self._progress}, from_now=(progress,))
        self._positions = Positions(bootstrap, demo.topic, {name: f"{prefix}headrace-{name}" for name in state.jobs})

    def look(self) -> None:
        """Update the state, without waiting."""
        now, state = time.monotonic(), self._state
        state.shipped = self._shipper.acknowledged
        self._shipped.append((now, state.shipped))
        while now - self._shipped[0][0] > _RATE_OVER_S:
            self._shipped.popleft()
        earlier, count = self._shipped[0]
        state.shipped_per_s = (state.shipped - count) / (now - earlier) if now > earlier else 0.0
        for job, positions in self._positions.read().items():
            self._moved(job, positions, now)
        self._topics.read()

    def _moved(self, name: str, positions: Mapping[int, int], now: float) -> None:
        before, job = self._reached.get(name), self._state.jobs[name]
        if not positions or positions == before:
            return
        ages = [
            age
            for partition, end in positions.items()
            for age in self._shipper.arrivals.ages(partition, (before or {}).get(partition, 0), end, now)
        ]
        job.latency_s = median(ages) or job.latency_s
        self._reached[name] = dict(positions)
        job.lines = sum(positions.values())

    def _progress(self, value: bytes | None) -> None:
        found = json.loads(value) if value else {}
        job = self._state.jobs.get(found.get("job", ""))
        if job is not None:
            job.state, job.batch, job.rows_per_s = found["state"], found["batch"], found["rows_per_s"]
            job.quarantined, job.failure = found["quarantined_rows"], found["last_failure"]

    def _result(self, name: str, is_top_pages: bool, value: bytes | None) -> None:
        job = self._state.jobs[name]
        job.published = (job.published or 0) + 1
        if is_top_pages and value is not None:
            row = json.loads(value)
            self._state.top_pages[row["rank"]] = row

    def close(self) -> None:
        self._topics.close()
