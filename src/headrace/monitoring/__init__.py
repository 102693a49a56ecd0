"""What a broker shows of itself: HTTP, Prometheus gauges, the history of groups. Only reads."""
