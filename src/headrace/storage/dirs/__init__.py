"""Log directories: identity, locks, checkpoints, moves, failures, verification."""
