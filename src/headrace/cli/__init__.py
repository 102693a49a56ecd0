"""The `headrace` command. Talks to a cluster only as a client, over the wire."""
