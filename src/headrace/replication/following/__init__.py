"""Copies partitions that other brokers lead: fetchers for each leader, their state without I/O, and appends to logs."""
