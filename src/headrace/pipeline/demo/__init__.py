"""The demo: a broker, an access log on its way into a topic, and Spark's results on the terminal."""
