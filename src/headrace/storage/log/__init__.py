"""The log of one partition: segments, indexes, recovery, leader epochs, producer snapshots, retention."""
