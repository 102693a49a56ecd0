from headrace.coordinator.runtime.name_cache import cached_by_name


def test_results_for_long_names_are_not_kept() -> None:
    called = []

    @cached_by_name(10)
    def note(name: str, number: int) -> int:
        called.append(name)
        return len(name) + number

    for name in ("x" * 256, "x" * 257):
        assert [note(name, 1), note(name, 1)] == [len(name) + 1] * 2
    assert [len(name) for name in called] == [256, 257, 257]
