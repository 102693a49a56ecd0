"""The record formats of `__consumer_offsets`, for groups of both protocols."""
