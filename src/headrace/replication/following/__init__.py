"""Copies partitions that other brokers lead: fetchers per leader, their pure state, and appends to local logs."""
