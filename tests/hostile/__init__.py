"""Bad input and bad behaviour over raw sockets: the broker answers as Kafka does, and other clients are unaffected."""
