"""Partitions on this broker: leadership, high watermark, producer state."""
