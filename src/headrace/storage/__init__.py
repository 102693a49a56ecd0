"""The only package that opens log files, independent of brokers and groups.

`log/` is one partition: shared facts (`state.py`), reading, flushing, appending, recovery, indexes and producer
snapshots. `dirs/` locks, identifies and watches log directories, takes failed ones offline, and moves partitions
between them. `cleaner/` compacts: a worker process copies segments without superseded records, and the broker swaps
them in so that a crash leaves either the old or the new ones. `files/` has atomic replacement, checkpoints and
bounded descriptors.
"""
