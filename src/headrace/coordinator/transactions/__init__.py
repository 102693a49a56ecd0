"""Transactions: what becomes of a transactional id, and the records of `__transaction_state`. Pure."""
