"""The report of a failing seed: its shortest failing history, the events, and the command to replay it."""

from tests.simulation.history import History
from tests.simulation.world import ViolationError, play, shortest


def explain(history: History, violation: ViolationError) -> str:
    short = shortest(history, violation)
    trace: list[str] = []
    found = play(short, trace)
    return "\n".join(
        [
            str(violation),
            f"The shortest history with this failure ({len(short.acts)} of {len(history.acts)} acts):",
            str(short),
            "Its events:",
            *trace,
            str(found),
            f"To replay: .venv/bin/python -m tests.simulation --replay {history.seed}",
        ]
    )
