"""Computations, as pure functions from DataFrame to DataFrame.

They know no topics, tables or checkpoints, and give the same rows on a stream and on a table.
"""
