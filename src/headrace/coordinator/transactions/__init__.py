"""Transactional ids: their states, decisions about them, and the records of `__transaction_state`. Pure."""
