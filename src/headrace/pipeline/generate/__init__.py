"""A seeded access log with known truth.

`parameters` -> `model` (requests in order of time, from `people`, `crawlers` and `site`) -> `log` (lines in order of
arrival: late, torn, logged twice) with `truth` beside them; `files` and `topic` write them. The rest is pure.
"""
