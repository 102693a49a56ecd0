import pytest

from headrace.cluster import topic_names
from headrace.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("name", ["a", "A-9._", "x" * 249, "...", "__consumer_offsets"])
def test_valid_names_are_accepted(name: str) -> None:
    topic_names.validate(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "a\n", "x" * 250, "a\0", "\u0661"])
def test_other_names_are_refused(name: str) -> None:
    assert not topic_names.is_valid(name)
    with pytest.raises(KafkaError, match="Topic name is invalid") as caught:
        topic_names.validate(name)
    assert caught.value.code == ErrorCode.invalid_topic_exception
