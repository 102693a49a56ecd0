"""Maintain the tables of a lake while jobs run: audit, trace, replay and compact."""
