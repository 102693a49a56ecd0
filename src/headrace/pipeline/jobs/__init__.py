"""Queries: transforms with their topics, tables and checkpoints."""
