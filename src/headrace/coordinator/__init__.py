"""Coordinators of groups and transactions: pure state machines whose state is replayed from internal topics."""
