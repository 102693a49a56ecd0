"""The history of groups: offsets, lag and rebalances, sampled, stored on disk, and served over HTTP.

Changes no group and no log: no client's request waits for it, and the broker works without it.
"""
