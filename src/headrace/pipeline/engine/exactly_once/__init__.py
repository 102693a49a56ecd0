"""Write and publish the results of a batch exactly once, even if the batch is repeated."""
