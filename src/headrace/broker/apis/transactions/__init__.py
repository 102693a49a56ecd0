"""The APIs of transactions: producers', brokers' and administrators'."""
