"""Decide from the nodes whether a write was applied, after its reply was lost with the connection. Pure.

A write must not simply be repeated: a second create or conditional set would fail although the first one was applied.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.cluster.store import Check, Create, Delete, Done, Node, Operation, Set


class Sent(NamedTuple):
    """A write that was sent, and the state of the session before it."""

    operations: Sequence[Operation]
    zxid: int
    """The latest zxid that the session had seen before the write, which gets a larger one."""
    session: int


def paths_to_read(sent: Sent) -> list[str]:
    """Return the paths of the nodes, except sequential ones, that show whether the write was applied."""
    return [
        operation.path
        for operation in sent.operations
        if not isinstance(operation, Check) and not (isinstance(operation, Create) and operation.sequential)
    ]


def parents_to_list(sent: Sent) -> list[str]:
    """Return the parents of sequential nodes, whose children show whether the write was applied."""
    return [
        operation.path.rpartition("/")[0] or "/"
        for operation in sent.operations
        if isinstance(operation, Create) and operation.sequential
    ]


def results_of(
    sent: Sent, nodes: Mapping[str, Node | None], sequential: Mapping[str, Sequence[tuple[str, Node]]]
) -> list[Done] | None:
    """Return the results of the operations if they were applied; otherwise None.

    `nodes` are those of `paths_to_read`, `sequential` the children of `parents_to_list` with their paths. A write of
    the same data by another session is mistaken for this one.
    """
    done: list[Done] = []
    taken: set[str] = set()
    last = {operation.path: index for index, operation in enumerate(sent.operations) if isinstance(operation, Set)}
    for index, operation in enumerate(sent.operations):
        path = operation.path
        node = nodes.get(path)
        if isinstance(operation, Create) and operation.sequential:
            found = _sequential_node(sent, operation, sequential.get(path.rpartition("/")[0] or "/", ()), taken)
            if found is None:
                return None
            taken.add(found)
            done.append(Done(found))
        elif isinstance(operation, Check) or _shows(sent, operation, node, is_written_later=index < last.get(path, -1)):
            done.append(Done(path, node.stat if isinstance(operation, Set) and node is not None else None))
        else:
            return None
    return None if all(isinstance(operation, Check) for operation in sent.operations) else done


def _shows(sent: Sent, operation: Operation, node: Node | None, *, is_written_later: bool) -> bool:
    """Return True if the node shows that the operation was applied."""
    match operation:
        case Create(_, _, True):
            return node is not None and node.stat.owner == sent.session
        case Create(_, data):
            return node is not None and node.stat.czxid > sent.zxid and (node.data == data or is_written_later)
        case Set(_, data):
            return node is not None and node.stat.mzxid > sent.zxid and (node.data == data or is_written_later)
        case Delete():
            return node is None
    return False


def _sequential_node(
    sent: Sent, operation: Create, children: Sequence[tuple[str, Node]], taken: set[str]
) -> str | None:
    """Return the first child that the operation may have created."""
    for path, node in children:
        if (
            path not in taken
            and path.startswith(operation.path)
            and node.stat.czxid > sent.zxid
            and node.data == operation.data
            and (not operation.ephemeral or node.stat.owner == sent.session)
        ):
            return path
    return None
