"""Compaction of logs, in a process beside the broker. The only package that loads numpy."""
