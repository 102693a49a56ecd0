from headrace.cluster.store import Check, Create, Delete, Done, Node, Operation, Set, Stat
from headrace.cluster.stores.lost_answers import Sent, parents_to_list, paths_to_read, results_of

SESSION = 7
BEFORE, AFTER = 10, 11
"""Transactions: the last one known when the write was sent, and a later one."""


def sent(*operations: Operation) -> Sent:
    return Sent(operations, BEFORE, SESSION)


def node(data: bytes = b"1", *, czxid: int = 1, mzxid: int = AFTER, owner: int = 0) -> Node:
    return Node(data, Stat(1, czxid, mzxid, 0, owner))


def test_a_lost_create_succeeded_only_if_a_newer_node_has_its_data() -> None:
    write = sent(Create("/a", b"1"))
    assert results_of(write, {"/a": node(czxid=AFTER)}, {}) == [Done("/a")]
    for other in (node(b"2", czxid=AFTER), node(czxid=BEFORE), None):
        assert results_of(write, {"/a": other}, {}) is None


def test_an_ephemeral_node_is_recognised_by_its_session() -> None:
    own, other = node(czxid=AFTER, owner=SESSION), node(czxid=AFTER, owner=SESSION + 1)
    write = sent(Create("/a", b"1", ephemeral=True))
    assert results_of(write, {"/a": own}, {}) == [Done("/a")]
    assert results_of(write, {"/a": other}, {}) is None


def test_a_node_created_empty_and_set_has_the_data_of_the_set() -> None:
    registered = node(b"1", czxid=AFTER)
    results = results_of(sent(Create("/a"), Set("/a", b"1")), {"/a": registered}, {})
    assert results == [Done("/a"), Done("/a", registered.stat)]


def test_a_lost_set_succeeded_only_if_a_newer_write_has_its_data() -> None:
    found = node(b"1", mzxid=AFTER)
    assert results_of(sent(Set("/a", b"1")), {"/a": found}, {}) == [Done("/a", found.stat)]
    assert results_of(sent(Set("/a", b"1")), {"/a": node(b"1", mzxid=BEFORE)}, {}) is None


def test_a_deletion_was_applied_if_the_node_is_gone() -> None:
    assert results_of(sent(Delete("/a")), {"/a": None}, {}) == [Done("/a")]
    assert results_of(sent(Delete("/a")), {"/a": node()}, {}) is None


def test_a_node_that_was_set_twice_has_the_data_of_the_second_set() -> None:
    found = node(b"2", mzxid=AFTER)
    write = sent(Set("/a", b"1", 4), Set("/a", b"2", 5))
    assert results_of(write, {"/a": found}, {}) == [Done("/a", found.stat)] * 2
    assert results_of(write, {"/a": node(b"1", mzxid=AFTER)}, {}) is None


def test_a_sequential_node_is_found_among_the_children() -> None:
    write = sent(Create("/a/c_", b"1", sequential=True))
    children = [("/a/c_1", node(czxid=BEFORE)), ("/a/c_2", node(b"2", czxid=AFTER)), ("/a/c_3", node(czxid=AFTER))]
    assert parents_to_list(write) == ["/a"]
    assert results_of(write, {}, {"/a": children}) == [Done("/a/c_3")]


def test_two_sequential_nodes_are_two_children() -> None:
    write = sent(Create("/c_", b"1", sequential=True), Create("/c_", b"1", sequential=True))
    children = [("/c_1", node(czxid=AFTER)), ("/c_2", node(czxid=AFTER))]
    assert results_of(write, {}, {"/": children}) == [Done("/c_1"), Done("/c_2")]


def test_a_write_of_which_one_part_left_no_trace_was_not_applied() -> None:
    write = sent(Create("/a", b"1"), Create("/b", b"1"))
    assert results_of(write, {"/a": node(czxid=AFTER), "/b": None}, {}) is None


def test_a_check_needs_no_trace() -> None:
    write = sent(Check("/x", 1), Create("/a", b"1"))
    assert paths_to_read(write) == ["/a"]
    assert results_of(write, {"/a": node(czxid=AFTER)}, {}) == [Done("/x"), Done("/a")]


def test_checks_alone_leave_no_trace() -> None:
    assert results_of(sent(Check("/x", 1)), {}, {}) is None
