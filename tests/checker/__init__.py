"""Transactions under faults, and a checker that judges them by the histories that clients have recorded."""
