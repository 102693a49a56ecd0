"""Write and publish the results of a batch once, however often it is repeated."""
