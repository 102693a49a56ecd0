"""What runs: transforms wired to topics, tables and checkpoints."""
