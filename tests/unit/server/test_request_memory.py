"""The memory of incomplete requests is shared between connections."""

from headrace.server.request_memory import FREE_SIZE, RequestMemory

BIG = FREE_SIZE * 2


class Waiter:
    def __init__(self) -> None:
        self.granted = False

    def memory_granted(self) -> None:
        self.granted = True


def test_small_requests_never_wait() -> None:
    memory = RequestMemory(0)

    assert all(memory.reserve(Waiter(), FREE_SIZE) for _ in range(100))


def test_a_large_request_waits_until_there_is_room() -> None:
    memory = RequestMemory(BIG * 2)
    assert memory.reserve(Waiter(), BIG)
    assert memory.reserve(Waiter(), BIG)
    waiter = Waiter()

    assert not memory.reserve(waiter, BIG)
    assert memory.is_short
    memory.release(BIG)

    assert waiter.granted
    assert memory.used == BIG * 2


def test_one_request_larger_than_all_memory_is_served_alone() -> None:
    memory = RequestMemory(BIG)
    first = Waiter()
    assert memory.reserve(first, BIG * 10)
    second = Waiter()
    assert not memory.reserve(second, BIG * 10)

    memory.release(BIG * 10)

    assert second.granted


def test_waiting_connections_get_memory_in_order() -> None:
    memory = RequestMemory(BIG * 3)
    assert memory.reserve(Waiter(), BIG * 2)
    large, small = Waiter(), Waiter()
    assert not memory.reserve(large, BIG * 2)
    assert not memory.reserve(small, BIG)

    memory.release(BIG * 2)

    assert large.granted
    assert small.granted


def test_a_closed_connection_is_skipped() -> None:
    memory = RequestMemory(BIG)
    assert memory.reserve(Waiter(), BIG)
    gone, next_one = Waiter(), Waiter()
    memory.reserve(gone, BIG)
    memory.reserve(next_one, BIG)

    memory.forget(gone)
    memory.release(BIG)

    assert not gone.granted
    assert next_one.granted
