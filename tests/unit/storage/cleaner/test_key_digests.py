"""Digests distinguish keys, depend on nothing else, and are unpredictable."""

import os
import random
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.cleaner.key_digests import LONGEST_SUMMED, KeyDigests

keys_of_any_size = st.lists(
    st.one_of(
        st.binary(max_size=10),
        st.binary(max_size=10).map(lambda key: key + bytes(8)),
        st.binary(min_size=LONGEST_SUMMED - 9, max_size=LONGEST_SUMMED + 9),
    ),
    min_size=1,
    max_size=20,
)


def _digests(digests: KeyDigests, keys: Sequence[bytes], before: int = 0) -> list[tuple[int, int]]:
    content = np.frombuffer(bytes(before) + b"".join(keys) + b"\xff" * 8, np.uint8)
    sizes = np.array([len(key) for key in keys], np.int64)
    starts = before + np.cumsum(sizes) - sizes
    found = digests.of(content, starts, sizes)
    return list(zip(found.high.tolist(), found.low.tolist(), strict=True))


@given(keys_of_any_size, st.integers(0, 9))
def test_a_digest_depends_only_on_the_key(keys: list[bytes], before: int) -> None:
    digests = KeyDigests(random.Random(1).randbytes)
    found = _digests(digests, keys, before)
    assert len(set(found)) == len(set(keys))
    for key, digest in zip(keys, found, strict=True):
        assert _digests(digests, [key]) == [digest]


def test_keys_that_differ_in_one_bit_differ_in_all_parts_of_the_digest() -> None:
    digests = KeyDigests(random.Random(2).randbytes)
    keys = [(1 << bit).to_bytes(LONGEST_SUMMED) for bit in range(8 * LONGEST_SUMMED)]
    halves = np.array(_digests(digests, keys), np.uint64)
    for part in (halves >> np.uint64(32), halves & np.uint64(0xFFFF_FFFF)):
        for column in part.T:
            # two of 512 random 32-bit numbers are equal in one of 30,000 runs
            assert len(set(column.tolist())) == len(keys)


def test_digests_of_two_instances_differ() -> None:
    for key in (b"", b"key", b"long" * 50):
        assert len({_digests(KeyDigests(os.urandom), [key])[0] for _ in range(20)}) == 20
