import pytest

from headrace.cluster import topic_names
from headrace.errors import ErrorCode, KafkaError


def test_valid_names_are_accepted_and_others_refused() -> None:
    for name in ("a", "A-9._", "x" * 249, "...", "__consumer_offsets"):
        topic_names.validate(name)
    for name in ("", ".", "..", "a b", "ä", "a/b", "a\n", "x" * 250, "a\0", "\u0661"):
        assert not topic_names.is_valid(name), name
        with pytest.raises(KafkaError, match="Topic name is invalid") as caught:
            topic_names.validate(name)
        assert caught.value.code == ErrorCode.invalid_topic_exception
