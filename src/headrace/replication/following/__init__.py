"""Copies partitions that other brokers lead: fetchers for every leader, their pure state, and appends to the logs."""
