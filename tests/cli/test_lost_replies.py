"""Connections that are lost before the reply."""

import os
import subprocess
import sys

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.support.ports import free_port
from tests.support.proxy import NO_FAULTS, Faults, Proxy
from tests.support.waiting import wait_for


def test_records_are_written_once_if_the_reply_is_lost() -> None:
    port = free_port()
    with (
        Broker({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as broker,
        Proxy(broker.bootstrap, port=port) as proxy,
    ):
        headrace = [sys.executable, "-m", "headrace"]
        environment = {**os.environ, "HEADRACE_BOOTSTRAP": proxy.address}
        subprocess.run([*headrace, "topics", "create", "t"], env=environment, check=True, timeout=60)
        proxy.faults = Faults(lose_answer=1.0, apis=frozenset({int(ApiKey.PRODUCE)}))
        command = [*headrace, "produce", "t"]
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True) as producing:
            assert producing.stdin is not None
            producing.stdin.write("one\ntwo\nthree\n")
            producing.stdin.close()
            wait_for(lambda: proxy.fault_counts["lose_answer"], "a reply is lost")
            proxy.faults = NO_FAULTS
            assert producing.wait(60) == 0
        consumed = subprocess.run(
            [*headrace, "consume", "t", "--until-end"], env=environment, capture_output=True, text=True, check=True
        )
        assert consumed.stdout.split() == ["one", "two", "three"]
