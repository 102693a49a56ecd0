"""A broker's HTTP listener, its Prometheus metrics, and the history of its groups. Changes neither groups nor logs."""
