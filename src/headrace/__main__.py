"""The command `headrace`, also `python -m headrace`."""

import os
import sys


def main() -> int:
    """Run the command line and return its exit code."""
    _replace_closed_streams()
    try:
        return _main()
    except KeyboardInterrupt:
        # Ctrl-C during an import.
        return 130


def _replace_closed_streams() -> None:
    """Open /dev/null in place of closed streams; otherwise a socket or file could get their descriptors and output.

    Standard output is opened read-only, so that writing to it still fails.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _main() -> int:
    if sys.argv[1:2] == ["start"]:
        # Typer would delay the start, which takes 0.3 s without it: see cli/start_args.py.
        from headrace.cli import start_args

        options = start_args.parse(sys.argv[2:])
        if options is not None:
            from headrace.cli.start import run

            return run(options)
    try:
        from headrace.cli.main import run as run_command_line
    except ModuleNotFoundError as error:
        from headrace.extras import missing

        if (found := missing(error)) is None:
            raise
        from headrace.cli import broker_only

        return broker_only.run(sys.argv[1:], found[0])
    return run_command_line()


if __name__ == "__main__":
    sys.exit(main())
