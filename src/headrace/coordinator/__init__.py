"""Coordinators of groups and transactions: pure machines whose state is replayed from internal topics."""
