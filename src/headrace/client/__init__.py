"""Connections to other brokers, as a client of their listeners. Knows neither logs nor metadata."""
