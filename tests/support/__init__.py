"""What several test suites share: broker processes, raw wire requests, waiting for conditions."""
