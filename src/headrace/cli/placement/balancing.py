"""Spread items over brokers evenly, at the lowest cost. Independent of replicas and requests. Pure.

This is a minimum-cost flow: every item sends one unit to each of `count` brokers. A broker costs the square of its
load, which makes the optimum even, times a weight so large that no saving on items outweighs evenness. Negative cycles
of the residual graph are cancelled until none is left, which proves that the flow is optimal (Klein 1967).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Item:
    """Something to place on `count` different brokers."""

    group: str
    """Of equally good solutions, one that spreads the items of every group evenly is preferred."""
    count: int
    brokers: frozenset[int]
    """The permitted brokers, at least `count`."""
    costs: Mapping[int, int]
    """Cost by broker. The sum of all costs is minimal among the most even solutions."""
    other_cost: int
    """Cost of a broker that is not in `costs`."""
    size: int
    """If moves have the same cost and the same effect on groups, the smallest item moves."""

    def cost(self, broker: int) -> int:
        return self.costs.get(broker, self.other_cost)


def spread(items: Sequence[Item], racks: Mapping[int, str], preference: Mapping[int, int]) -> list[frozenset[int]]:
    """Return the brokers of every item.

    `racks` has the rack of every broker: the brokers of an item are spread over the racks as evenly as possible. If
    everything else is equal, brokers with a low `preference` are chosen.
    """
    solver = _Solver(items, racks, preference)
    solver.improve()
    return [frozenset(taken) for taken in solver.taken]


class _Edge(NamedTuple):
    source: int
    target: int
    weight: int
    """Change in the costs if a unit moves from `source` to `target`."""


class _Move(NamedTuple):
    source: int
    target: int
    weight: int
    item: int
    """The item that moves; `_NO_ITEM` if `source` or `target` is the sink."""


_SINK: Final = -1
"""The node of the graph that receives the units of all brokers."""
_NO_ITEM: Final = -1


class _Solver:
    def __init__(self, items: Sequence[Item], racks: Mapping[int, str], preference: Mapping[int, int]) -> None:
        self._items = items
        self._racks = racks
        self._preference = preference
        self._loads = dict.fromkeys(sorted({broker for item in items for broker in item.brokers}), 0)
        self._group_loads: dict[tuple[str, int], int] = {}
        self._limits = [_rack_limits([racks[broker] for broker in item.brokers], item.count) for item in items]
        self._moves: dict[tuple[int, int], dict[int, set[int]]] = {}
        """The items that can move between two brokers, by the change in costs."""
        self._listed: list[list[tuple[int, int, int]]] = [[] for _ in items]
        """The entries of every item in `_moves`: source, target, change in costs."""
        self._load_weight = 1 + sum(max([item.other_cost, *item.costs.values()]) * item.count for item in items)
        self.taken: list[set[int]] = []
        for number in range(len(items)):
            self.taken.append(self._cheapest(number))
            for broker in self.taken[number]:
                self._add_load(number, broker, 1)
            self._list_moves(number)

    def improve(self) -> None:
        """Minimize the costs: cancel negative cycles until none is left."""
        while (cycle := _negative_cycle(list(self._edges()))) is not None:
            for move in self._without_conflicts(self._chosen(cycle)):
                if move.item != _NO_ITEM:
                    self._move(move.item, move.source, move.target)

    def _cheapest(self, number: int) -> set[int]:
        """Return the cheapest valid brokers for an item, preferring those with low loads."""
        item, limits = self._items[number], self._limits[number]
        order = sorted(
            item.brokers,
            key=lambda broker: (
                item.cost(broker),
                self._group_loads.get((item.group, broker), 0),
                self._loads[broker],
                self._preference.get(broker, 0),
                broker,
            ),
        )
        chosen: set[int] = set()
        used = dict.fromkeys(limits, 0)
        for which in (0, 1):  # first reach the lower limit of every rack, then fill up to the upper limits
            for broker in order:
                rack = self._racks[broker]
                if len(chosen) < item.count and broker not in chosen and used[rack] < limits[rack][which]:
                    chosen.add(broker)
                    used[rack] += 1
        return chosen

    def _edges(self) -> Iterator[_Edge]:
        """Yield the residual graph: the cheapest moves between brokers, and the costs of adding or removing a unit."""
        for (source, target), by_cost in self._moves.items():
            weights = [cost for cost, found in by_cost.items() if found]
            if weights:
                yield _Edge(source, target, min(weights))
        for broker, load in self._loads.items():
            yield _Edge(broker, _SINK, self._load_weight * (2 * load + 1))
            if load:
                yield _Edge(_SINK, broker, -self._load_weight * (2 * load - 1))

    def _chosen(self, cycle: Sequence[_Edge]) -> list[_Move]:
        """Choose the items to move along a cycle, preferably a different one for every edge."""
        used: set[int] = set()
        moves = []
        for source, target, weight in cycle:
            item = _NO_ITEM
            if _SINK not in (source, target):
                found = self._moves[source, target][weight]
                item = min(found - used or found, key=lambda number: self._effect(number, source, target))
                used.add(item)
            moves.append(_Move(source, target, weight, item))
        return moves

    def _effect(self, number: int, source: int, target: int) -> tuple[int, int, int, int]:
        """Rank a move of equal cost: lower is better."""
        item = self._items[number]
        crowded = self._group_loads.get((item.group, target), 0) - self._group_loads.get((item.group, source), 0)
        preferred = self._preference.get(target, 0) - self._preference.get(source, 0)
        return crowded, item.size, preferred, number

    def _without_conflicts(self, cycle: list[_Move]) -> list[_Move]:
        """Return a negative cycle in which no item makes two moves that exclude each other.

        Two moves of an item, a to b and c to d, can be replaced by c to b and a to d, which closes two cycles. Their
        costs add up to those of the original cycle, so one of them is negative.
        """
        seen: dict[int, int] = {}
        for place, second in enumerate(cycle):
            before = place if second.item == _NO_ITEM else seen.setdefault(second.item, place)
            if before == place:
                continue
            first = cycle[before]
            inner = self._shortcut(second.item, second.source, first.target)
            outer = self._shortcut(second.item, first.source, second.target)
            if inner is not None and outer is not None:
                cycles = ([*cycle[before + 1 : place], inner], [*cycle[:before], outer, *cycle[place + 1 :]])
                return self._without_conflicts(min(cycles, key=lambda moves: sum(move.weight for move in moves)))
        return cycle

    def _shortcut(self, number: int, source: int, target: int) -> _Move | None:
        if not self._can_move(number, source, target):
            return None
        item = self._items[number]
        return _Move(source, target, item.cost(target) - item.cost(source), number)

    def _can_move(self, number: int, source: int, target: int) -> bool:
        taken = self.taken[number]
        if source not in taken or target in taken:
            return False
        here, there = self._racks[source], self._racks[target]
        if here == there:
            return True
        limits = self._limits[number]
        used = [self._racks[broker] for broker in taken]
        return used.count(here) > limits[here][0] and used.count(there) < limits[there][1]

    def _move(self, number: int, source: int, target: int) -> None:
        assert self._can_move(number, source, target), "moves of a cycle conflict with each other"
        self.taken[number].remove(source)
        self.taken[number].add(target)
        self._add_load(number, source, -1)
        self._add_load(number, target, 1)
        self._list_moves(number)

    def _add_load(self, number: int, broker: int, units: int) -> None:
        self._loads[broker] += units
        place = (self._items[number].group, broker)
        self._group_loads[place] = self._group_loads.get(place, 0) + units

    def _list_moves(self, number: int) -> None:
        """Replace the listed moves of an item with those that are possible after its last move."""
        for source, target, cost in self._listed[number]:
            self._moves[source, target][cost].discard(number)
        item, taken = self._items[number], self.taken[number]
        self._listed[number] = [
            (source, target, item.cost(target) - item.cost(source))
            for source in taken
            for target in item.brokers - taken
            if self._can_move(number, source, target)
        ]
        for source, target, cost in self._listed[number]:
            self._moves.setdefault((source, target), {}).setdefault(cost, set()).add(number)


def _rack_limits(racks: Sequence[str], count: int) -> dict[str, tuple[int, int]]:
    """Return how many of the `count` units each rack takes, at least and at most; `racks` has every broker's rack."""
    sizes = {rack: racks.count(rack) for rack in racks}
    level = 0
    while level < max(sizes.values()) and sum(min(size, level + 1) for size in sizes.values()) <= count:
        level += 1
    return {rack: (min(size, level), min(size, level + 1)) for rack, size in sizes.items()}


def _negative_cycle(edges: Sequence[_Edge]) -> list[_Edge] | None:
    """Return the edges of a negative cycle in order, or None if there is none (Bellman-Ford)."""
    distances = {node: 0 for edge in edges for node in edge[:2]}
    arrived: dict[int, _Edge] = {}
    while True:
        changed = False
        for edge in edges:
            source, target, weight = edge
            distance = distances[source] + weight
            if distance < distances[target]:
                distances[target] = distance
                arrived[target] = edge
                changed = True
        if not changed:
            return None
        # A cycle of predecessor edges is negative. Without such a cycle, the search terminates.
        if (cycle := _cycle(arrived)) is not None:
            return cycle


def _cycle(arrived: Mapping[int, _Edge]) -> list[_Edge] | None:
    visited: dict[int, int] = {}
    for start in arrived:
        node = start
        while node not in visited and node in arrived:
            visited[node] = start
            node = arrived[node].source
        if visited.get(node) == start:
            cycle = [arrived[node]]
            while cycle[-1].source != node:
                cycle.append(arrived[cycle[-1].source])
            return cycle[::-1]
    return None
