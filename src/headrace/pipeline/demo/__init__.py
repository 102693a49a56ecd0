"""The demo: a broker, an access log that is shipped into a topic, and Spark's results on the terminal."""
