"""Transaction APIs for producers, brokers and administrators."""
