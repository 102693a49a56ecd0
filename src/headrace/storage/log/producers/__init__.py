"""Producer snapshots and open transactions of a log."""
