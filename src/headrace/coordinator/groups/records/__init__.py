"""The record formats of `__consumer_offsets`, for both kinds of groups; they know neither."""
