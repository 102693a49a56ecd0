import logging

import pytest

from headrace.coordinator.groups.effects import Happening, Note
from headrace.coordinator.rebalance_log import RebalanceLog


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def note(what: Happening, reason: str = "", *, member: str = "", generation: int = 7) -> Note:
    return Note(what=what, generation=generation, member_id=member, client_id=member and "app", reason=reason)


def messages(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in lines.records]


def test_a_restarted_rebalance_is_one_line(lines: pytest.LogCaptureFixture) -> None:
    log = RebalanceLog()
    log.note("g", Note(what=Happening.LOADED, generation=1), 3, 0.0)
    log.note("g", note(Happening.JOINED, member="m"), 4, 10.0)
    log.note("g", note(Happening.REBALANCING, "adding member m; client reason: not provided"), 4, 10.0)
    log.note("g", note(Happening.COMPLETING, "4 members"), 4, 10.5)
    log.note("g", note(Happening.TIMED_OUT, "it did not send SyncGroup in time", member="m"), 3, 11.0)
    log.note("g", note(Happening.REBALANCING, "members without a SyncGroup"), 3, 11.0)
    log.note("g", note(Happening.STABLE, "3 members", generation=8), 3, 12.5)
    assert messages(lines) == [
        (
            "Group g generation 8 is stable after 2500 ms: 3 members, 3 before."
            " Cause: adding member m and 1 more change. Timed out: app (it did not send SyncGroup in time)"
        )
    ]


def test_members_whose_time_out_starts_a_rebalance_are_named(lines: pytest.LogCaptureFixture) -> None:
    """Each reading of a clock returns a later time."""
    log = RebalanceLog()
    log.note("g", note(Happening.TIMED_OUT, "no heartbeat", member="m"), 2, 10.0)
    log.note("g", note(Happening.REBALANCING, "removing member m"), 2, 10.000_1)
    log.note("g", note(Happening.STABLE, "2 members"), 2, 10.02)
    log.note("g", note(Happening.REBALANCING, "adding member n"), 3, 10.05)
    log.note("g", note(Happening.STABLE, "3 members"), 3, 10.07)
    first, second = messages(lines)
    assert first.endswith("Timed out: app (no heartbeat)")
    assert "Timed out" not in second


def test_a_group_that_keeps_rebalancing_is_logged_once_a_minute(lines: pytest.LogCaptureFixture) -> None:
    log = RebalanceLog()
    for second in range(0, 150, 10):
        log.note("g", note(Happening.REBALANCING, f"change {second}"), 2, float(second))
    assert messages(lines) == [
        f"Group g generation 7 has been rebalancing for {at} s and started over {at // 10} times."
        f" First cause: change 0. Now: change {at}"
        for at in (60, 120)
    ]


def test_reasons_of_clients_are_truncated(lines: pytest.LogCaptureFixture) -> None:
    log = RebalanceLog()
    log.note("g", note(Happening.REBALANCING, "x" * 10_000), 1, 0.0)
    log.note("g", note(Happening.STABLE), 1, 0.0)
    assert len(messages(lines)[0]) < 500


def test_groups_without_members_use_no_memory() -> None:
    log = RebalanceLog()
    for number in range(100):
        log.note(f"g{number}", note(Happening.TIMED_OUT, member="m"), 0, 0.0)
        log.note(f"g{number}", note(Happening.REBALANCING, "why"), 0, 0.0)
        log.note(f"g{number}", note(Happening.EMPTY), 0, 0.0)
    assert not log._open
    assert not log._sizes
