"""Test jobs of the pipeline: run them once, or check that a stream of random batches gives the result of one batch.

A `Lake` has tables in a temporary directory, and its own broker in this process. With pytest, the fixture
`headrace_lake` is a new lake for each test. Needs the extra `headrace[pipeline]`, and Java.
"""

from headrace.testing.pipeline.comparison import assert_stream_equals_batch
from headrace.testing.pipeline.lake import KILL_POINTS, Change, KilledError, Lake, Records, Result

__all__ = ["KILL_POINTS", "Change", "KilledError", "Lake", "Records", "Result", "assert_stream_equals_batch"]
