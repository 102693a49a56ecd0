"""Consumer groups and their offsets: pure machines, replayed from an internal topic."""
