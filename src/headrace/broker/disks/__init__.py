"""Disks: watch free space, handle failures, move logs, and compact them."""
