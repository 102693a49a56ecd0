"""One broker: the composition root `node.py`, the APIs, and the work that the broker does on its own.

`node.py` builds a broker from the packages below, starts it, and unwinds everything it opened, whatever fails. It is
the only module that knows all of them. `upkeep.py` has the periodic work, and `founding.py` creates a new cluster's
metadata.
"""
