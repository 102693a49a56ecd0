"""Run `headrace`; SIGUSR1 blocks its event loop, while its threads continue."""

import signal
import sys
import time

from headrace.__main__ import main


def _freeze(*_: object) -> None:
    time.sleep(3600)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _freeze)
    sys.exit(main())
