from headrace.replication.slow_disk import STALL_NS, SlowDisk

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND


def test_setting_the_clock_back_does_not_prolong_waiting() -> None:
    disk = SlowDisk()
    disk.stalled(NOW, STALL_NS)
    disk.clock_is(NOW + SECOND)
    assert disk.until_ns == NOW + 10 * SECOND
    disk.clock_is(NOW - 3600 * SECOND)
    assert disk.until_ns == 0
