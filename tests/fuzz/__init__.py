"""Frames that nobody thought of, against a whole broker in this process."""
