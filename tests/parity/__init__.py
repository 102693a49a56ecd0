"""Send the same requests to Apache Kafka and Headrace, in every common version, and compare the answers."""
