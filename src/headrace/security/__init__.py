"""Who a client is and what it may do. Knows nothing of sockets or logs."""
