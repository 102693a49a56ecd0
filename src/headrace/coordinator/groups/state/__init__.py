"""The state of one shard: groups of both protocols, and offsets."""
