"""The only room that opens log files: segments, indexes, checkpoints, logs, recovery. Knows nothing of brokers or groups."""
