"""Definitions of jobs and deployments: pure data, read without Spark and without a cluster."""
