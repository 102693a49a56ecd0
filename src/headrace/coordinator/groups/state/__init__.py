"""The groups, of both protocols, and the offsets of one partition of `__consumer_offsets`."""
