"""When batches run: turns for those of jobs on tables, and the order in which jobs start."""
