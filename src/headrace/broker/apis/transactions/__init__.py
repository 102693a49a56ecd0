"""The APIs of transactions, for producers, brokers and admins."""
