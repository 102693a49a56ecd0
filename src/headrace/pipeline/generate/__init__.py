"""Generate an access log from a seed, with the results that the pipeline must compute from it (the truth).

`parameters` -> `model` (requests in time order, from `people`, `crawlers` and `site`) -> `log` (lines in order of
arrival: some late, torn or logged twice) and `truth`. `files` and `topic` write them; the other modules are pure.
"""
