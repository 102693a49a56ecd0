"""Bytes to values and back: framing, API table, record batches, compression. No I/O."""
