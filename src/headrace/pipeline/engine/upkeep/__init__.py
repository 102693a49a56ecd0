"""Look after the tables of a lake, beside running jobs: audit, trace, replay and compact."""
