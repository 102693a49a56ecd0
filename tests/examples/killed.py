"""Run a program and kill it: `killed.py before|after CLASS.METHOD COUNT PROGRAM [ARGUMENT...]`.

SIGKILL is sent right after call number COUNT of a method of confluent_kafka's Consumer or Producer, or right before a
call to a Producer, once all earlier records are in the log.
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import confluent_kafka


def main(when: str, method: str, count: str, program: str, *arguments: str) -> None:
    kind, _, name = method.partition(".")
    original: Any = getattr(confluent_kafka, kind)
    calls = 0

    def killing(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(count) and when == "before":
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        result = getattr(original, name)(self, *args, **kwargs)
        if calls == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(confluent_kafka, kind, type(kind, (original,), {name: killing}))
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
