"""One broker: the composition root `node.py`, the APIs, and background work.

`node.py` builds a broker from all other packages, starts it, and closes everything if the start fails. `upkeep.py` runs
periodic work, and `founding.py` checks which cluster the log directories belong to.
"""
