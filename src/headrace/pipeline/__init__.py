"""Spark jobs on Headrace topics. Talks to a cluster only as a client, through Spark."""
