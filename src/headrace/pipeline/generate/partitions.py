"""The partition of a key, as Kafka's producers choose it."""


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a record with this key: 32-bit murmur2, as in Kafka's default partitioner."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    mask, mix = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * mix & mask
        word = (word ^ word >> 24) * mix & mask
        state = state * mix & mask ^ word
    if rest := data[whole:]:
        state = (state ^ int.from_bytes(rest, "little")) * mix & mask
    state = (state ^ state >> 13) * mix & mask
    return state ^ state >> 15
