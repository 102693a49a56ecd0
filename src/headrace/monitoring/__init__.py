"""A broker's HTTP listener, its Prometheus metrics, and the history of its groups. Only reads groups and logs."""
