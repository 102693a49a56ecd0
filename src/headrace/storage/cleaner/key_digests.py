"""Computes digests of many keys at once, short enough to store one for every key of a log.

A digest has 128 bits: the upper halves of four sums of the key's 32-bit words, multiplied by random 64-bit numbers
(multiply-shift hashing: Dietzfelbinger 1996; Thorup, "High Speed Hashing for Integers and Strings", 2015). Any two keys
collide with a probability of 2^-128. The numbers are secret and differ for every map, so clients cannot produce
collisions. Long keys, with more words than numbers, get a keyed BLAKE2b digest.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.storage.cleaner.columns import Bytes, Integers

Words = NDArray[np.uint64]

LONGEST_SUMMED: Final = 64
"""The longest key, in bytes, for which sums are faster than BLAKE2b."""
_ROWS: Final = 65_536
"""Keys per step: intermediate results take five times the memory of the digests."""
_SUMS: Final = 4
_WORD: Final = 8
_LOWER: Final = np.uint64(0xFFFF_FFFF)
_UPPER: Final = np.uint64(0xFFFF_FFFF_0000_0000)
_HALF: Final = np.uint64(32)


class Digests(NamedTuple):
    """Two columns of 64 bits, with one row per key."""

    high: Words
    low: Words


class KeyDigests:
    """Computes digests of record keys. Only digests that the same instance has computed are comparable.

    `random_bytes` returns the given number of random bytes, like `os.urandom`.
    """

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        # one row per 32-bit word, and two for the length, which distinguishes keys that differ only in trailing zeros
        rows = LONGEST_SUMMED // 4 + 2
        self._numbers: Words = np.frombuffer(random_bytes(rows * _SUMS * 8), np.uint64).reshape(rows, _SUMS)
        self._secret = random_bytes(32)

    def of(self, content: Bytes, starts: Integers, sizes: Integers) -> Digests:
        """Return the digests of the keys in `content`; at least `_WORD` bytes must follow the last one."""
        digests = Digests(np.empty(len(starts), np.uint64), np.empty(len(starts), np.uint64))
        words: Words = np.ndarray((len(content) - _WORD + 1,), "<u8", content, strides=(1,))
        for first in range(0, len(starts), _ROWS):
            some = sizes[first : first + _ROWS]
            for size in np.unique(some[some <= LONGEST_SUMMED]).tolist():
                rows = first + np.flatnonzero(some == size)
                digests.high[rows], digests.low[rows] = self._summed(words, starts[rows], size)
            rows = first + np.flatnonzero(some > LONGEST_SUMMED)
            digests.high[rows], digests.low[rows] = self._hashed(content, starts[rows], sizes[rows])
        return digests

    def _summed(self, words: Words, starts: Integers, size: int) -> Digests:
        """Return the digests of equally long keys."""
        numbers = self._numbers
        length = np.uint64(size) * numbers[-2] + numbers[-1]
        sums = [np.full(len(starts), start) for start in length]
        for place in range(0, size, _WORD):
            word = words[starts + place]
            if size - place < _WORD:
                word &= np.uint64((1 << 8 * (size - place)) - 1)
            lower, upper = word & _LOWER, word >> _HALF
            row = place // 4
            for column in range(_SUMS):
                sums[column] += lower * numbers[row, column]
                sums[column] += upper * numbers[row + 1, column]
        return Digests(sums[0] & _UPPER | sums[1] >> _HALF, sums[2] & _UPPER | sums[3] >> _HALF)

    def _hashed(self, content: Bytes, starts: Integers, sizes: Integers) -> Digests:
        found = [
            blake2b(content[start : start + size].tobytes(), digest_size=16, key=self._secret).digest()
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]
        halves = np.frombuffer(b"".join(found), np.uint64)
        return Digests(halves[::2], halves[1::2])
