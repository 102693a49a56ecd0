"""Connections to other brokers, as a client of their listeners. Independent of logs and metadata."""
