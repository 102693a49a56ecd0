from pathlib import Path

import pytest

from headrace.pipeline.demo import charts
from headrace.pipeline.demo.deployment import demo_jobs
from headrace.pipeline.demo.place import Options, Place
from headrace.pipeline.demo.shipping.arrivals import Arrivals, median
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.params import seconds_of

OPTIONS = Options(input="/var/log/access.log", lake="/demo/lake", bootstrap=None, prefix="")


def test_columns_rise_to_the_maximum() -> None:
    assert charts.columns([0, 8, 16, 1], 2) == ["  █ ", " ██▁"]
    assert charts.columns([0, 8, 16, 1], 2, ascii_only=True) == ["  # ", " ###"]
    assert charts.columns([], 1) == [""]


def test_bars_have_the_length_of_their_share() -> None:
    assert [charts.bar(value, 8, 2) for value in (0, 1, 4, 8)] == ["", "▎", "█", "██"]
    assert charts.bar(1, 1000, 2, ascii_only=True) == "#"


def test_the_age_of_lines_is_found_by_their_offsets() -> None:
    arrivals = Arrivals()
    for offset in range(4):
        arrivals.arrived(0, offset, now=float(offset))
    assert arrivals.ages(0, 1, 3, now=10.0) == [9.0, 8.0]
    assert arrivals.ages(1, 0, 3, now=10.0) == []
    assert (median([1.0, 2.0, 9.0]), median([])) == (2.0, None)


def test_a_new_directory_can_be_continued_once_it_is_recorded(tmp_path: Path) -> None:
    place = Place(tmp_path / "demo", OPTIONS)
    assert place.is_new
    place.record()
    assert not Place(tmp_path / "demo", OPTIONS).is_new


def test_a_directory_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(PipelineError, match="is not empty: use a new directory"):
        Place(tmp_path, OPTIONS)


def test_a_demo_of_another_log_is_not_continued(tmp_path: Path) -> None:
    Place(tmp_path, OPTIONS).record()
    other = Options(input=None, lake="/demo/lake", bootstrap=None, prefix="")
    with pytest.raises(PipelineError, match=r"was started with --input \(/var/log/access\.log\): use the same options"):
        Place(tmp_path, other)


def test_every_topic_has_the_prefix_and_every_job_starts_a_batch_soon() -> None:
    demo = demo_jobs(bootstrap="b:1", lake="/lake", prefix="t.", overrides=("top_pages.count=3",))
    assert demo.topic == "t.access-log"
    assert demo.changelogs["top_pages"] == "t.top-pages"
    assert demo.deployment.settings("events").topic == "t.access-log"
    assert demo.deployment.settings("top_pages").topic is None
    assert demo.deployment.params(demo.jobs["top_pages"]).count == 3
    # The end of the demo waits for the next batch of every job.
    triggers = [demo.deployment.settings(name).trigger or job.trigger for name, job in demo.jobs.items()]
    assert max(map(seconds_of, triggers)) == 2
