"""A pipeline on a standalone cluster, whose driver, workers and broker are killed while it runs (`make kills`)."""
