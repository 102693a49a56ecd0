"""What makes a repeated batch change nothing: ledger, checkpoint, proofs and published records."""
