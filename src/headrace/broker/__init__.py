"""Sockets, dispatch, the APIs, and the composition root `node.py`."""
