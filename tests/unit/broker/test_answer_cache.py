"""Answers that are kept: only while their source is current, and within bounds."""

from headrace.broker.apis.answer_cache import AnswerCache


def test_an_answer_is_found_as_long_as_its_source_is_the_same_object() -> None:
    cache: AnswerCache[bytes] = AnswerCache(10_000)
    image, equal = [1], [1]
    cache.put("key", image, b"answer", 6)

    assert cache.get("key", image) == b"answer"
    assert cache.get("key", equal) is None
    assert cache.get("other", image) is None


def test_the_oldest_go_when_there_are_too_many_bytes() -> None:
    cache: AnswerCache[int] = AnswerCache(10_000)
    for number in range(100):
        cache.put(number, None, number, 1_000)

    assert cache.size <= 10_000
    assert cache.get(0, None) is None
    assert cache.get(99, None) == 99


def test_what_would_leave_no_room_for_others_is_not_kept() -> None:
    cache: AnswerCache[int] = AnswerCache(10_000)
    cache.put("small", None, 1, 10)
    cache.put("large", None, 2, 6_000)

    assert cache.get("large", None) is None
    assert cache.get("small", None) == 1


def test_a_new_answer_takes_the_place_of_the_old_one() -> None:
    cache: AnswerCache[int] = AnswerCache(10_000)
    for number in range(50):
        cache.put("key", None, number, 1_000)

    assert (len(cache), cache.size) == (1, 1_300)
