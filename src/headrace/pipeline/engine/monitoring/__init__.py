"""The progress of the jobs, for the status command, the table `runs`, the progress topic and Prometheus."""
