"""Bad and late rows: expectations, lateness and the quarantine."""
