from headrace.wire.items import Items, made_of


def test_items_are_created_on_access() -> None:
    made: list[int] = []

    def make(source: int) -> int:
        made.append(source)
        return source * 10

    items = Items(range(3), make)
    assert (len(items), made) == (3, [])
    assert items[1] == 10
    assert items[:2] == [0, 10]
    assert items == [0, 10, 20]
    assert made == [1, 0, 1, 0, 1, 2]


def test_few_items_are_created_immediately() -> None:
    assert made_of([1, 2], str, few=2) == ["1", "2"]
    assert isinstance(made_of([1, 2], str, few=2), list)
    assert isinstance(made_of([1, 2, 3], str, few=2), Items)
