"""Cached replies are valid while their source is current, and bounded in size."""

from headrace.broker.apis.answer_cache import AnswerCache


def test_an_entry_is_valid_while_its_source_is_the_same_object() -> None:
    cache: AnswerCache[bytes] = AnswerCache(10_000)
    image, equal = [1], [1]
    cache.put("key", image, b"answer", 6)

    assert cache.get("key", image) == b"answer"
    assert cache.get("key", equal) is None
    assert cache.get("other", image) is None


def test_the_oldest_entries_are_evicted() -> None:
    cache: AnswerCache[int] = AnswerCache(10_000)
    for number in range(100):
        cache.put(number, None, number, 1_000)

    assert cache.size <= 10_000
    assert cache.get(0, None) is None
    assert cache.get(99, None) == 99


def test_an_entry_over_half_the_cache_is_not_stored() -> None:
    cache: AnswerCache[int] = AnswerCache(10_000)
    cache.put("small", None, 1, 10)
    cache.put("large", None, 2, 6_000)

    assert cache.get("large", None) is None
    assert cache.get("small", None) == 1


def test_a_new_entry_replaces_the_old_one() -> None:
    cache: AnswerCache[int] = AnswerCache(10_000)
    for number in range(50):
        cache.put("key", None, number, 1_000)

    assert (len(cache), cache.size) == (1, 1_300)
