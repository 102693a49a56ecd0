"""The sources of the demo's lines, and the shipper that sends them to the topic."""
