"""The index files of a segment: offsets, times and aborted transactions."""
