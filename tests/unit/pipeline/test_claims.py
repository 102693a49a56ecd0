import pytest

from headrace.pipeline.engine.exactly_once.claims import Claims
from headrace.pipeline.engine.exactly_once.publishing import FencedError
from headrace.pipeline.errors import TemporaryError
from tests.unit.pipeline.memory_files import MemoryFiles


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


def test_a_fenced_driver_that_has_the_claim_goes_on() -> None:
    files = MemoryFiles({})
    claims = Claims(files, "/checkpoints")
    claims.claim("views-1")
    with pytest.raises(TemporaryError, match=r"no other driver has claimed it.*longer than five minutes"):
        raise claims.fenced("views-1")
    Claims(files, "/checkpoints").claim("views-1")
    with pytest.raises(FencedError, match="another driver has started job views-1"):
        raise claims.fenced("views-1")


def test_a_driver_that_is_fenced_again_and_again_has_a_competitor_with_other_checkpoints() -> None:
    times = iter([0.0, 500.0, 700.0, 0.0, 800.0])
    claims = Claims(MemoryFiles({}), "/checkpoints", lambda: next(times))
    claims.claim("views-1")
    for job in ("views-1", "views-1", "views-1", "visitors-1"):
        assert isinstance(claims.fenced(job), TemporaryError)
    with pytest.raises(FencedError, match=r"give one of the two a prefix under \[place\]"):
        raise claims.fenced("views-1")
