"""The only room that opens log files: segments, indexes, checkpoints, logs, recovery. Knows no brokers, no groups."""
