"""A broker's HTTP listener, its Prometheus metrics, and the history of its groups. Changes no group and no log."""
