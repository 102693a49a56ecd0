"""What every coordinator needs: shards over an internal topic, loading, timers. Knows no kind of record."""
