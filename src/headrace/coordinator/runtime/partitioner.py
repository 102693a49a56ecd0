"""Map groups and transactional ids to partitions of their internal topic by Java's hash, as all Kafka brokers do."""

from headrace.coordinator.runtime.name_cache import cached_by_name

_JAVA_MIN_INT = -(2**31)


def java_hash(text: str) -> int:
    """Return `String.hashCode()`: a hash over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@cached_by_name(65_536)
def partition_for(key: str, partition_count: int) -> int:
    value = java_hash(key)
    return (0 if value == _JAVA_MIN_INT else abs(value)) % partition_count
