"""The runtime of all coordinators: shards of an internal topic, loading, timers. Independent of record types."""
