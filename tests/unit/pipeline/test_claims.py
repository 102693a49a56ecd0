import pytest

from headrace.pipeline.engine.exactly_once.claims import Claims
from headrace.pipeline.engine.exactly_once.publishing import FencedError
from tests.unit.pipeline.memory_files import MemoryFiles


def test_a_driver_starts_its_jobs_again() -> None:
    claims = Claims(MemoryFiles({}), "/checkpoints")
    for _ in range(3):
        claims.claim("views-1")


def test_an_earlier_driver_does_not_start_a_job_again() -> None:
    files = MemoryFiles({})
    first, second = Claims(files, "/checkpoints"), Claims(files, "/checkpoints")
    first.claim("views-1")
    first.claim("visitors-1")
    second.claim("views-1")
    with pytest.raises(FencedError, match="another driver has started job views-1"):
        first.claim("views-1")
    first.claim("visitors-1")
    second.claim("views-1")


def test_a_lost_file_is_no_other_driver() -> None:
    files = MemoryFiles({})
    claims = Claims(files, "/checkpoints")
    claims.claim("views-1")
    files.clear()
    claims.claim("views-1")
