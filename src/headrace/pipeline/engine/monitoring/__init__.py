"""Progress of the jobs: for the status command, the table of runs, the progress topic and Prometheus."""
