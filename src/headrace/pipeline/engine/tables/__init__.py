"""Delta tables: the lake, additive tables and snapshots."""
