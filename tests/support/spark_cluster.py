"""Spark's standalone cluster on 127.0.0.1, from the pip package of pyspark: a master, and workers that tests kill."""

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from tests.support.ports import free_port
from tests.support.waiting import wait_for

_HOST: Final = "127.0.0.1"
_STARTS_S: Final = 120.0


class SparkCluster:
    """A master and two workers with one core and 640 MB each, as a context manager."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._port = free_port()
        self._number = 0
        self._wanted = workers
        self.workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    @property
    def master(self) -> str:
        return f"spark://{_HOST}:{self._port}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._run("master.Master", "master", "--port", str(self._port))
        wait_for(lambda: "New state: ALIVE" in self.log("master"), "the master", timeout_s=_STARTS_S)
        for _ in range(self._wanted):
            self.start_worker()
        return self

    def start_worker(self) -> None:
        """Start a worker and wait until the master knows it."""
        self._number += 1
        name = f"worker-{self._number}"
        options = ("--cores", "1", "--memory", "640m", "--work-dir", str(self._directory / name))
        self.workers.append(self._run("worker.Worker", name, *options, self.master))
        registered = "Successfully registered with master"
        wait_for(lambda: registered in self.log(name), f"{name}\n{self.log(name)}", timeout_s=_STARTS_S)

    def kill_worker(self, index: int) -> None:
        """Kill a worker together with its executor."""
        _kill(self.workers.pop(index))

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def _run(self, program: str, name: str, *options: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}"]
        command += ["--host", _HOST, "--webui-port", "0", *options]
        environ = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST, "SPARK_DAEMON_MEMORY": "192m"}
        with (self._directory / f"{name}.log").open("wb") as log:
            # A group of its own: executors are children of their worker.
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(_kill, process)
        return process

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
