"""Log compaction, in a separate process. The only package that loads numpy."""
