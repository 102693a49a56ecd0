"""Generate an access log from a seed, with the results that the pipeline must compute from it (the truth).

`parameters` -> `model` (requests in order of time, from `people`, `crawlers` and `site`) -> `log` (lines in order of
arrival: late, torn, logged twice) with `truth` beside them; `files` and `topic` write them. The rest is pure.
"""
