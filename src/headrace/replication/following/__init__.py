"""Copies the partitions that other brokers lead: a fetcher per leader, its pure state, and the appends to the logs."""
