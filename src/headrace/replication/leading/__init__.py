"""Leads partitions that have followers: in-sync replicas, high watermark, and replica selection."""
