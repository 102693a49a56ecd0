"""How groups fare over time: offsets, lag and rebalances, sampled, kept on disk, and shown over HTTP.

Only ever looks: nothing that serves a client waits for it, and a broker without it serves as well.
"""
