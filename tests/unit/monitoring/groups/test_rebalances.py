"""Rebalances derived from the timelines of real group machines."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.coordinator.groups.effects import Happening, Note
from headrace.monitoring.groups.events import Event, event_of
from headrace.monitoring.groups.rebalances import event_json, timeline_of
from tests.unit.coordinator.driver import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, Driver
from tests.unit.coordinator.world import SETTINGS, World, beat


def events_of(group: Driver) -> list[Event]:
    return [as_event(note, at_ms) for note, at_ms in group.timed_notes]


def as_event(note: Note, at_ms: int) -> Event:
    return event_of("g", note, at_ms)


def rebalances_of(events: list[Event]) -> list[dict[str, Any]]:
    return timeline_of(events).as_json()


def ids(members: list[dict[str, Any]]) -> list[str]:
    return [member["member_id"] for member in members]


def test_the_first_rebalance_waits_for_the_initial_delay_and_the_leader() -> None:
    group = Driver()
    leader, _ = group.become_member()
    group.finish_initial_rebalance()
    group.advance(250)
    group.sync_all()

    (rebalance,) = rebalances_of(events_of(group))
    assert (rebalance["generation"], rebalance["outcome"], ids(rebalance["joined"])) == (1, "stable", [leader])
    join, sync = rebalance["phases"]
    assert (join["phase"], join["ended_by"], join["waited_for"]) == ("join", "group.initial.rebalance.delay.ms", [])
    assert join["ms"] == INITIAL_DELAY_MS
    assert (sync["phase"], sync["ms"], sync["ended_by"]) == ("sync", 250, "the leader's assignment")
    assert [(item["member_id"], item["ms"]) for item in sync["waited_for"]] == [(leader, 250)]


def test_a_rebalance_names_the_last_member_to_join() -> None:
    group = Driver()
    leader, slow = group.stable(2)
    group.timed_notes.clear()
    new, _ = group.become_member(client_id="newcomer")
    group.advance(100)
    group.join(leader)
    group.advance(900)
    group.join(slow)
    group.sync_all()

    (rebalance,) = rebalances_of(events_of(group))
    assert (rebalance["generation"], rebalance["outcome"], rebalance["ms"]) == (2, "stable", 1000)
    assert ids(rebalance["joined"]) == [new]
    assert rebalance["joined"][0]["client_id"] == "newcomer"
    assert rebalance["phases"][0]["ended_by"] == "the last member"
    assert [(item["member_id"], item["ms"]) for item in rebalance["phases"][0]["waited_for"]] == [(slow, 1000)]


def test_a_member_that_did_not_rejoin_was_waited_for_until_the_timeout() -> None:
    group = Driver()
    leader, lost = group.stable(2, session_ms=REBALANCE_MS * 2)
    group.timed_notes.clear()
    group.become_member(session_ms=REBALANCE_MS * 2)
    group.join(leader, session_ms=REBALANCE_MS * 2)
    group.advance(REBALANCE_MS)
    group.sync_all()

    # The texts of reasons do not matter.
    (rebalance,) = rebalances_of([event._replace(reason="") for event in events_of(group)])
    join = rebalance["phases"][0]
    assert (join["ended_by"], join["ms"]) == ("rebalance timeout", REBALANCE_MS)
    assert [(item["member_id"], item["ms"]) for item in join["waited_for"]] == [(lost, REBALANCE_MS)]
    assert ids(rebalance["timed_out"]) == [lost]


def test_a_group_is_empty_after_its_last_member_crashed() -> None:
    group = Driver()
    (only,) = group.stable(1)
    group.timed_notes.clear()
    group.advance(SESSION_MS)
    (rebalance,) = rebalances_of(events_of(group))
    assert (rebalance["outcome"], ids(rebalance["timed_out"])) == ("empty", [only])


def test_a_rebalance_can_be_superseded_or_interrupted() -> None:
    group = Driver()
    group.stable(2)
    group.timed_notes.clear()
    group.become_member()
    for member in list(group.group.membership.members):
        group.join(member)
    # Another member joins before the leader sends its assignment.
    group.become_member()
    events = events_of(group)
    events.append(events[-1]._replace(what="LOADED", member_id=""))
    assert [item["outcome"] for item in rebalances_of(events)] == ["superseded", "interrupted"]


def test_an_unfinished_rebalance_is_in_progress() -> None:
    group = Driver()
    group.stable(2)
    group.timed_notes.clear()
    group.become_member()
    (rebalance,) = rebalances_of(events_of(group))
    assert (rebalance["outcome"], rebalance["ended_ms"], rebalance["phases"][0]["ms"]) == ("in progress", None, None)


def test_a_rebalance_of_the_consumer_protocol_has_two_phases() -> None:
    world = World(settings=replace(SETTINGS, group_consumer_assignment_interval_ms=0))
    first = beat(world).epoch
    one = beat(world, epoch=first, owned=world.coordinator.consumer_group("g").known.members["a"].assigned.keys())
    world.notes.clear()
    beat(world, "b")
    # Member a is asked to revoke two partitions, and does so in the next step.
    events = [as_event(note, 1000) for note in world.notes]
    world.notes.clear()
    beat(world, epoch=one.epoch, owned=None)
    target = world.coordinator.consumer_group("g").known.target["a"]
    events += [as_event(note, 1500) for note in world.notes]
    world.notes.clear()
    epoch = beat(world, epoch=one.epoch, owned=target).epoch
    beat(world, "b", epoch=epoch, owned=frozenset())
    events += [as_event(note, 4000) for note in world.notes]

    (rebalance,) = rebalances_of(events)
    assert (rebalance["outcome"], ids(rebalance["joined"]), rebalance["ms"]) == ("stable", ["b"], 3000)
    assign, reconcile = rebalance["phases"]
    assert (assign["phase"], assign["ms"]) == ("assign", 0)
    assert (reconcile["phase"], reconcile["ms"]) == ("reconcile", 3000)
    assert {item["member_id"]: item["ms"] for item in reconcile["waited_for"]} == {"a": 2500, "b": 3000}


def test_an_event_gets_its_client_from_earlier_ones() -> None:
    joined = Event("g", 1, "JOINED", 1, "m", None, "app", "/10.0.0.1", "")
    fenced = Event("g", 2, "FENCED", 1, "m", "i", "", "", "Heartbeat: instance i is member n, not m")
    timeline = timeline_of([joined, fenced])
    assert event_json(fenced, timeline.clients) == {
        "time_ms": 2,
        "event": "fenced",
        "text": "was fenced",
        "generation": 1,
        "member": {"member_id": "m", "client_id": "app", "host": "10.0.0.1", "instance_id": None},
        "reason": "Heartbeat: instance i is member n, not m",
    }
    assert event_json(fenced._replace(what="SOMETHING_NEW"), timeline.clients)["text"] == "something_new"


def test_every_event_is_documented() -> None:
    page = Path(__file__).parents[4] / "docs" / "watching-groups.md"
    named = set(re.findall(r"`([a-z_]+)`", page.read_text()))
    assert {item.name.lower() for item in Happening} <= named


class Id(str):
    """A member id that counts how often ids are compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Id.compared += 1
        return str.__eq__(self, other)


def test_the_time_for_a_rebalance_of_many_members_is_linear() -> None:
    began = as_event(Note(what=Happening.REBALANCING, generation=1), 0)
    joined = as_event(Note(what=Happening.JOINED, generation=1), 0)
    numbers = [*range(1000), 5, 6]
    events = [joined._replace(member_id=Id(f"m{number}"), at_ms=place) for place, number in enumerate(numbers, 1)]
    (rebalance,) = rebalances_of([began, *events])
    assert ids(rebalance["joined"]) == [f"m{number}" for number in range(1000)]
    assert Id.compared < 20_000
