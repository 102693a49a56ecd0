"""Idempotent producers behind a proxy that loses, delays and repeats their requests."""
