"""Sockets, frames and dispatch: from a client's bytes to a handler and back."""
