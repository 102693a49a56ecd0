"""The identity and the permissions of a client. Knows nothing of sockets or logs."""
