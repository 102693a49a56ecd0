"""The wire format: API table, messages, record batches, compression. No I/O."""
