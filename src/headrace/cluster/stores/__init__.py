"""Implementations of the metadata store port (`cluster/store.py`)."""
