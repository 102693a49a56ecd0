"""Profile the broker under a load: `python -m bench.profile [--load small] [--seconds 5]`.

Samples the broker with py-spy (`pip install py-spy`) and prints the hottest functions and the cost of a request. `own`
is the share of samples in the function itself; `with callees` includes the functions that it calls. `--flame FILE`
saves the collapsed stacks for a flame graph, e.g. at https://www.speedscope.app.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench import frames, raw_client
from bench.brokers import Headrace
from bench.topics import PARTITIONS, fresh_topic

SHOWN: Final = 40


class Shape(NamedTuple):
    """A Produce request: partitions, records per partition, and the number of such requests in flight."""

    partitions: int
    records: int
    in_flight: int


SHAPES: Final = {
    "large": Shape(PARTITIONS, 600, 5),
    "medium": Shape(PARTITIONS, 150, 5),
    "small": Shape(PARTITIONS, 75, 5),
    "one": Shape(1, 1, 64),
    "sync": Shape(1, 1, 1),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description="Prints the broker's hot functions.")
    parser.add_argument("--load", choices=sorted(SHAPES), default="small", help="size of the Produce requests")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the load")
    parser.add_argument("--flame", type=Path, help="file for the collapsed stacks")
    parser.add_argument("--no-sampling", action="store_true", help="only measure the cost of a request, without py-spy")
    options = parser.parse_args()
    if not options.no_sampling and shutil.which("py-spy", path=str(Path(sys.executable).parent)) is None:
        sys.stderr.write("py-spy is not installed: run `pip install py-spy`, or use --no-sampling.\n")
        return 2
    directory = Path(tempfile.mkdtemp(prefix="headrace-profile-"))
    broker = Headrace(directory / "broker")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # stops the broker
    try:
        broker.start()
        with fresh_topic(broker, "profile") as topic:
            stacks = _under_load(broker, topic, options.load, options.seconds, sampled=not options.no_sampling)
    finally:
        broker.remove()
        shutil.rmtree(directory, ignore_errors=True)
    if options.flame is not None:
        options.flame.write_text("\n".join(stacks) + "\n")
    if stacks:
        Console(width=120 if not sys.stdout.isatty() else None).print(_table(stacks))
    return 0


def _under_load(broker: Headrace, topic: str, load: str, seconds: float, *, sampled: bool) -> list[str]:
    shape = SHAPES[load]
    frame = frames.produce(topic, range(shape.partitions), records=shape.records, record_size=100)
    sampler = _Sampler(broker.pid, seconds)
    # One second to warm up.
    raw_client.pipelined(broker.port, frame, in_flight=shape.in_flight, seconds=1.0)
    if sampled:
        sampler.start()
    before = broker.cpu_seconds()
    rate = raw_client.pipelined(broker.port, frame, in_flight=shape.in_flight, seconds=seconds)
    cpu = broker.cpu_seconds() - before
    requests = rate * seconds
    records = requests * shape.partitions * shape.records
    sys.stdout.write(
        f"{load}: {len(frame):,} bytes per request, {shape.in_flight} in flight: {rate:,.0f} requests/s, "
        f"{records / seconds:,.0f} records/s; broker CPU {1e6 * cpu / requests:.1f} us per request, "
        f"{1e6 * cpu / records:.3f} s per million records; {broker.peak_resident_bytes() / 1e6:.0f} MB\n"
    )
    return sampler.stacks() if sampled else []


class _Sampler(threading.Thread):
    """Runs py-spy during the load. `stacks` returns lines of the form `frame;frame;frame count`."""

    def __init__(self, pid: int, seconds: float) -> None:
        super().__init__()
        self._pid = pid
        self._seconds = seconds
        self._shown = ""

    def run(self) -> None:
        with tempfile.NamedTemporaryFile(suffix=".stacks") as output:
            sampler = str(Path(sys.executable).parent / "py-spy")
            duration = str(max(1, round(self._seconds) - 1))
            options = [
                "--pid",
                str(self._pid),
                "--duration",
                duration,
                "--rate",
                "200",
                "--format",
                "raw",
                "--function",
            ]
            subprocess.run(
                [sampler, "record", "--nonblocking", *options, "--output", output.name], check=True, capture_output=True
            )
            self._shown = Path(output.name).read_text()

    def stacks(self) -> list[str]:
        self.join()
        return self._shown.splitlines()


def _table(stacks: list[str]) -> Table:
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    samples = 0
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        calls = stack.split(";")
        samples += int(count)
        own[calls[-1]] += int(count)
        for call in set(calls):
            total[call] += int(count)
    shown = Table("function", "own", "with callees", title=f"{samples} samples")
    for call, hits in own.most_common(SHOWN):
        shown.add_row(call, f"{hits / samples:.1%}", f"{total[call] / samples:.1%}")
    return shown


if __name__ == "__main__":
    sys.exit(main())
