"""Schedule batches: turns for jobs that read tables, and the order in which jobs start."""
