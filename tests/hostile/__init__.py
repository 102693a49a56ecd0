"""Bad input and bad behaviour over raw sockets: the answer is Kafka's, and other clients notice nothing."""
