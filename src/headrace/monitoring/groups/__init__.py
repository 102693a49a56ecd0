"""The history of groups: offsets, lag and rebalances, sampled, stored on disk, and served over HTTP.

It only reads groups and logs. No client request waits for it, and the broker works without it.
"""
