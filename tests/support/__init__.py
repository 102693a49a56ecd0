"""Helpers shared by the test suites: broker processes, raw wire requests, waiting for conditions."""
