"""What a person reads of a failing seed: the shortest history that fails so, what happened, how to replay it."""

from tests.simulation.history import History
from tests.simulation.world import ViolationError, play, shortest


def explain(history: History, violation: ViolationError) -> str:
    short = shortest(history, violation)
    trace: list[str] = []
    found = play(short, trace)
    return "\n".join(
        [
            str(violation),
            f"The shortest history that ends like this (of {len(history.acts)} acts, {len(short.acts)} are needed):",
            str(short),
            "What happened in it:",
            *trace,
            str(found),
            f"To replay: .venv/bin/python -m tests.simulation --replay {history.seed}",
        ]
    )
