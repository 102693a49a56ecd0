"""The `headrace` command: a client of the cluster, over the wire."""
