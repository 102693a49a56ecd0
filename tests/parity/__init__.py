"""The same requests to Apache Kafka and to Headrace, in every version that both offer, and the answers side by side."""
