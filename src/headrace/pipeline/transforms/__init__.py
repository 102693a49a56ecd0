"""What is computed, as pure functions from DataFrame to DataFrame.

They know neither topics, tables nor checkpoints, and give the same rows on a stream and on a table.
"""
