"""File access for logs: atomic replacement, checkpoints, shared descriptors, disk failures."""
