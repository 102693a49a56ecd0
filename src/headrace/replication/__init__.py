"""Partitions on this broker: leadership, high watermark, producer state. Pure machines beside thin shells."""
