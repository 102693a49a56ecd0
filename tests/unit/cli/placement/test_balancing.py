"""Spreading items over brokers, compared with every possible solution of small problems."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, permutations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.placement.balancing import Item, spread
from tests.support.examples import examples

Choice = Sequence[Collection[int]]


def item(count: int, brokers: Collection[int], current: Collection[int], *, group: str = "t", size: int = 0) -> Item:
    return Item(group, count, frozenset(brokers), dict.fromkeys(current, 0), other_cost=1, size=size)


def one_rack(brokers: Collection[int]) -> dict[int, str]:
    return dict.fromkeys(brokers, "")


def score(items: Sequence[Item], choice: Choice) -> tuple[int, int]:
    """Return how uneven the loads are, and the costs."""
    loads = Counter(broker for taken in choice for broker in taken)
    costs = sum(item.cost(broker) for item, taken in zip(items, choice, strict=True) for broker in taken)
    return sum(load * load for load in loads.values()), costs


def is_spread_over_racks(taken: Collection[int], brokers: Collection[int], racks: Mapping[int, str]) -> bool:
    """Return True if no rack could take one more instead of a rack that has at least two more."""
    sizes = Counter(racks[broker] for broker in brokers)
    used = Counter(racks[broker] for broker in taken)
    return not any(
        used[there] < sizes[there] and used[here] - used[there] >= 2 for here, there in permutations(sizes, 2)
    )


def best(items: Sequence[Item], racks: Mapping[int, str]) -> tuple[int, int]:
    """Return the score of the best solution, by trying all."""
    possible = [
        [
            taken
            for taken in combinations(sorted(item.brokers), item.count)
            if is_spread_over_racks(taken, item.brokers, racks)
        ]
        for item in items
    ]
    return min(score(items, choice) for choice in product(*possible))


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Item], dict[int, str]]:
    brokers = range(draw(st.integers(1, 4)))
    racks = {broker: draw(st.sampled_from("xyz")) for broker in brokers}
    found = []
    for _ in range(draw(st.integers(1, 5))):
        allowed = draw(st.frozensets(st.sampled_from(brokers), min_size=1))
        costs = draw(st.dictionaries(st.sampled_from(brokers), st.integers(0, 2)))
        count = draw(st.integers(1, len(allowed)))
        found.append(Item(draw(st.sampled_from("ab")), count, allowed, costs, draw(st.integers(0, 3)), 0))
    return found, racks


@given(problems())
@settings(max_examples=examples(50), deadline=None)
def test_no_other_solution_over_racks_is_more_even_or_cheaper(problem: tuple[list[Item], dict[int, str]]) -> None:
    items, racks = problem
    choice = spread(items, racks, {})
    assert score(items, choice) == best(items, racks)
    for one, taken in zip(items, choice, strict=True):
        assert len(taken) == one.count
        assert taken <= one.brokers
        assert is_spread_over_racks(taken, one.brokers, racks)


def test_a_new_broker_takes_its_share_of_every_group() -> None:
    items = [
        item(2, range(4), ((number + start) % 3, (number + start + 1) % 3), group=f"t{start}")
        for start in range(3)
        for number in range(12)
    ]

    taken = spread(items, one_rack(range(4)), {})

    shares = Counter(one.group for one, brokers in zip(items, taken, strict=True) if 3 in brokers)
    assert shares == {"t0": 6, "t1": 6, "t2": 6}


def test_the_smallest_item_of_a_group_moves() -> None:
    items = [item(1, range(2), [0], size=size) for size in (50, 7, 90, 8)]

    taken = spread(items, one_rack(range(2)), {})

    assert [next(iter(brokers)) for brokers in taken] == [0, 1, 0, 1]


def test_of_two_idle_brokers_the_preferred_one_is_chosen() -> None:
    assert spread([item(1, range(3), [])], one_rack(range(3)), {0: 5, 1: 2, 2: 3}) == [{1}]


def test_hundreds_of_items_are_solved_at_once() -> None:
    current = [[(number + step) % 9 for step in range(3)] for number in range(300)]
    items = [item(3, range(10), brokers, group=f"t{number % 50}") for number, brokers in enumerate(current)]

    taken = spread(items, one_rack(range(10)), {})

    assert set(Counter(broker for brokers in taken for broker in brokers).values()) == {90}
    assert sum(len(brokers - one.costs.keys()) for one, brokers in zip(items, taken, strict=True)) == 90
