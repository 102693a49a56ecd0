"""Handlers of Kafka's APIs, one module per family. `routes()` returns the handlers by API key."""
