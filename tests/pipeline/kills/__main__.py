"""`python -m tests.pipeline.kills` kills driver, workers and broker at random while the jobs run (`make kills`)."""

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

from tests.pipeline.kills.rig import Rig, kill
from tests.support.killable_broker import KillableBroker, killable_broker
from tests.support.spark_cluster import SparkCluster

_RATE = 50
"""Records per second."""
_VICTIMS = ("driver", "worker", "broker")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pipeline.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--victim", choices=_VICTIMS, help="default: any")
    parser.add_argument("--away", type=float, default=3.0, help="seconds that the broker is away, at most")
    parser.add_argument("--directory", type=Path, help="keep everything in this empty directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-kills-") as temporary:
        base = (options.directory or Path(temporary)).resolve()
        base.mkdir(parents=True, exist_ok=True)
        with killable_broker(base / "broker", {}) as broker, SparkCluster(base / "spark") as cluster:
            run(base, broker, cluster, options)


def run(base: Path, broker: KillableBroker, cluster: SparkCluster, options: argparse.Namespace) -> None:
    """Raise AssertionError if tables or topics are not exact after the kills."""
    chance = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    rig = Rig(base, broker.bootstrap, cluster.master, max_rows=2_000)
    ending = threading.Event()
    producing = threading.Thread(target=_produce, args=(rig, ending))
    producing.start()
    driver = rig.driver()
    try:
        for number in range(options.kills):
            _wait_for_a_batch(rig)
            time.sleep(chance.uniform(0, 3))
            victim = options.victim or chance.choice(_VICTIMS)
            print(f"{number + 1}. {victim}, {rig.produced} records, batch {rig.batch('lines')}", flush=True)
            if victim == "driver":
                kill(driver)
                driver = rig.driver()
            elif victim == "worker":
                cluster.kill_worker(chance.randrange(len(cluster.workers)))
                cluster.start_worker()
            else:
                broker.sigkill()
                time.sleep(chance.uniform(0, options.away))
                broker.start()
        _wait_for_a_batch(rig)
    finally:
        ending.set()
        producing.join()
        kill(driver)
    rig.run_once()
    rig.check()
    print(f"exact: {rig.produced} records in {rig.batch('lines') + 1} batches, after {options.kills} kills", flush=True)


def _produce(rig: Rig, ending: threading.Event) -> None:
    while not ending.wait(0.5):
        rig.produce(_RATE // 2)


def _wait_for_a_batch(rig: Rig, timeout_s: float = 180.0) -> None:
    """Wait until each job has written another batch."""
    before = {job: rig.batch(job) for job in ("lines", "words", "minutes")}
    deadline = time.monotonic() + timeout_s
    while not all(rig.batch(job) > number for job, number in before.items()):
        assert time.monotonic() < deadline, f"no batch for {timeout_s:g} s:\n{rig.end_of_log()}"
        time.sleep(0.1)


if __name__ == "__main__":
    main()
