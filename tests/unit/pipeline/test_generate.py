"""A generated log: the same for a seed, with a truth that a recount of its lines confirms."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.generate.crawlers import Kind
from headrace.pipeline.generate.files import write_log
from headrace.pipeline.generate.log import Record, log
from headrace.pipeline.generate.parameters import LATE_BY_S, Parameters
from headrace.pipeline.generate.partitions import partition_of
from headrace.pipeline.generate.people import BROWSERS
from headrace.pipeline.generate.site import PAGES, RISING_PATH
from headrace.pipeline.generate.truth import TABLES, Row, Truth, viewed_page
from tests.support.examples import examples
from tests.unit.pipeline import recount

Tables = dict[str, list[Any]]

shares = st.sampled_from((0.0, 0.01, 0.3))
any_parameters = st.builds(
    Parameters,
    seed=st.integers(0, 1_000_000),
    lines=st.integers(1, 600),
    hours=st.none() | st.floats(0.01, 30),
    start=st.integers(0, 4_000_000_000),
    rate=st.sampled_from((0.05, 1.0, 20.0)),
    visitors=st.none() | st.integers(7_300, 20_000),
    late=shares,
    torn=shares,
    duplicates=shares,
    partitions=st.integers(1, 5),
)


def generated(parameters: Parameters) -> tuple[list[Record], Tables, dict[str, Any]]:
    """Return the records, and the tables and totals of the truth."""
    tables: Tables = {name: [] for name in TABLES}

    def write(table: str, row: Row) -> None:
        tables[table].append(row)

    truth = Truth(parameters.partitions, write)
    records = list(log(parameters, truth))
    return records, tables, truth.close()


def lines_of(parameters: Parameters) -> list[bytes]:
    return [record.line for record in generated(parameters)[0]]


def in_any_order(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.fixture(scope="module")
def long_log() -> tuple[list[recount.Line], Tables]:
    """The lines of a log of seven hours without mishaps, in order of time, and the truth."""
    records, tables, _ = generated(Parameters(lines=9000, rate=0.36))
    return recount.well_formed(record.line for record in records), tables


@pytest.fixture(scope="module")
def undisturbed(long_log: tuple[list[recount.Line], Tables]) -> list[recount.Line]:
    return long_log[0]


@given(any_parameters)
@settings(max_examples=examples(7))
def test_the_same_parameters_make_the_same_log_and_truth(parameters: Parameters) -> None:
    assert generated(parameters) == generated(parameters)


def test_another_seed_makes_another_log() -> None:
    assert lines_of(Parameters(seed=1, lines=10)) != lines_of(Parameters(seed=2, lines=10))


@given(any_parameters)
@settings(max_examples=examples(20))
def test_a_recount_of_the_lines_gives_the_truth(parameters: Parameters) -> None:
    records, tables, _ = generated(parameters)
    good = recount.well_formed(record.line for record in records)
    counted = recount.recounted(good)
    assert {name: in_any_order(tables[name]) for name in counted} == {
        name: in_any_order(rows) for name, rows in counted.items()
    }
    late = recount.late_by_s(good, {record.key.decode(): record.partition for record in records})
    told = {row["partition"]: Counter(row["late_by_s"]) for row in tables["partitions"]}
    assert {partition: counts for partition, counts in told.items() if counts} == {
        partition: Counter({str(by): count for by, count in counts.items()}) for partition, counts in late.items()
    }
    assert [(row["line"], row["partition"], row["offset"]) for row in tables["quarantined"]] == recount.quarantined(
        [record.partition for record in records], good
    )


@given(any_parameters)
@settings(max_examples=examples(10))
def test_the_totals_are_those_of_the_tables(parameters: Parameters) -> None:
    records, tables, totals = generated(parameters)
    assert totals["lines"] == len(records) == sum(row["lines"] for row in tables["partitions"])
    assert totals["requests"] == sum(row["requests"] for row in tables["traffic"])
    assert totals["quarantined"] == len(tables["quarantined"])
    assert totals["late"] == sum(row["late"] for row in tables["partitions"])
    assert totals["views"] == sum(row["views"] for row in tables["page_views"])
    assert totals["bytes"] == sum(row["bytes"] for row in tables["traffic"])
    assert totals["clients"] == len({row["client"] for row in tables["sessions"]})
    assert totals["sessions"] == len(tables["sessions"])
    assert totals["sessions_of_one_request"] == sum(row["requests"] == 1 for row in tables["sessions"])


def test_a_log_has_as_many_lines_as_asked() -> None:
    asked = [1, 2, 101]
    assert [len(lines_of(Parameters(lines=lines, late=0.3, duplicates=0.3))) for lines in asked] == asked


def test_a_log_ends_early_when_stopped() -> None:
    asked = iter([False] * 10 + [True])
    parameters = Parameters(lines=100, late=0.5)
    assert len(list(log(parameters, Truth(1, lambda *_: None), lambda: next(asked)))) == 10


@pytest.mark.parametrize("rate", [0.5, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (2.0, 100.0))])
def test_a_log_has_as_many_hours_and_lines_a_second_as_asked(rate: float) -> None:
    length = 3600 if rate < 10 else 180
    parameters = Parameters(rate=rate, hours=length / 3600, start=1000, duplicates=0.1)
    times = [line.time.timestamp() - 1000 for line in recount.well_formed(lines_of(parameters))]
    assert min(times) == 0
    assert 0.95 * length < max(times) < length
    assert sum(time < length / 2 for time in times) == pytest.approx(rate * length / 2, rel=0.05)
    assert len(times) == pytest.approx(rate * length, rel=0.05)


def test_as_many_lines_are_torn_late_or_twice_as_asked() -> None:
    _, tables, totals = generated(Parameters(lines=5000, rate=0.4, late=0.05, torn=0.02, duplicates=0.03, partitions=3))
    asked = {"quarantined": 0.02, "late": 0.05, "duplicates": 0.03}
    found = {name: totals[name] / (totals["lines"] - totals["duplicates"]) for name in asked}
    assert found == pytest.approx(asked, rel=0.15)
    assert [row["late"] / row["lines"] for row in tables["partitions"]] == pytest.approx([0.05] * 3, rel=0.3)
    late = [(int(by), count) for row in tables["partitions"] for by, count in row["late_by_s"].items()]
    near = sum(count for by, count in late if any(known <= by <= known + 60 for known in LATE_BY_S))
    # The rest were still on their way at the end.
    assert near > 0.7 * totals["late"]


def test_late_lines_are_the_same_lines_in_another_order() -> None:
    late, on_time = lines_of(Parameters(lines=500, late=0.2)), lines_of(Parameters(lines=500))
    assert late != on_time
    assert sorted(late) == sorted(on_time)


def test_pauses_are_below_at_and_above_the_session_gap(undisturbed: list[recount.Line]) -> None:
    last: dict[str, recount.Line] = {}
    pauses: Counter[int] = Counter()
    for line in undisturbed:
        if line.client in last:
            pauses[int((line.time - last[line.client].time).total_seconds())] += 1
        last[line.client] = line
    assert min(pauses[seconds] for seconds in (1799, 1800, 1801)) > 5


def test_pages_follow_zipfs_law(undisturbed: list[recount.Line]) -> None:
    views = Counter(line.page for line in undisturbed)
    first, second, fourth = (views[page.path] for page in (PAGES[0], PAGES[1], PAGES[3]))
    assert first / second == pytest.approx(2, rel=0.2)
    assert first / fourth == pytest.approx(4, rel=0.2)


def test_the_planted_page_rises_from_hour_to_hour(undisturbed: list[recount.Line]) -> None:
    hours = sorted({line.time.hour for line in undisturbed})[:-1]
    share = []
    for hour in hours:
        views = [line.page for line in undisturbed if line.time.hour == hour and line.page]
        share.append(views.count(RISING_PATH) / len(views))
    assert all(later > earlier for earlier, later in zip(share, share[2:], strict=False))
    assert share[-1] > 5 * share[0]


def test_referrers_are_missing_internal_or_external(undisturbed: list[recount.Line]) -> None:
    hosts = Counter(line.referer.split("/")[2] if line.referer != "-" else None for line in undisturbed)
    assert hosts[None] > 1000
    assert hosts["www.example.org"] > 1000
    assert hosts["example.org"] > 1000
    assert len(hosts) > 30


def test_every_kind_of_crawler_leaves_its_own_traces(long_log: tuple[list[recount.Line], Tables]) -> None:
    lines, tables = long_log
    requests: defaultdict[str, list[recount.Line]] = defaultdict(list)
    for line in lines:
        requests[line.client].append(line)
    crawls: dict[str, list[list[recount.Line]]] = {kind: [] for kind in Kind}
    for row in tables["crawlers"]:
        own = requests[row["client"]]
        described = row["first"], row["last"], row["requests"], row["user_agent"]
        assert described == (recount.iso(own[0].time), recount.iso(own[-1].time), len(own), own[0].user_agent)
        crawls[row["kind"]].append(own)
    assert min(map(len, crawls.values())) >= 3

    named = {kind for kind, crawlers in crawls.items() if any(own[0].user_agent not in BROWSERS for own in crawlers)}
    assert named == {Kind.NAMED}
    assert {own[0].request for own in crawls[Kind.ROBOTS_READER]} == {"GET /robots.txt HTTP/1.1"}
    assert min(len({line.page for line in own}) for own in crawls[Kind.PAGE_WALKER][:-1]) >= 60
    assert {line.status for own in crawls[Kind.PROBER] for line in own} == {400, 403, 404}
    slow_drip = crawls[Kind.SLOW_DRIP][0]
    assert len(recount.sessions(slow_drip)) == 1
    assert (slow_drip[-1].time - slow_drip[0].time).total_seconds() > 2 * 3600


@given(st.binary(max_size=40), st.integers(1, 50))
def test_keys_are_in_the_partitions_of_kafkas_producers(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


def test_the_page_of_a_request() -> None:
    pages = {
        "GET /a/b.html HTTP/1.1": "/a/b.html",
        "GET /a?x=/b.png#c HTTP/1.1": "/a",
        "GET http://example.org:80/a HTTP/1.0": "/a",
        "GET http://example.org HTTP/1.1": None,
        "GET /?u=http://example.org/b HTTP/1.1": "/",
        "GET /": "/",
        "GET /logo.JPEG?v=2 HTTP/1.1": None,
        "GET /robots.txt HTTP/1.1": None,
        "GET /a/robots.txt HTTP/1.1": "/a/robots.txt",
        "GET /png HTTP/1.1": "/png",
        "GET /a b HTTP/1.1": None,
        "POST / HTTP/1.1": None,
        "-": None,
    }
    assert {request_line: viewed_page(request_line) for request_line in pages} == pages


def refusal(**parameters: Any) -> str:
    with pytest.raises(PipelineError) as refused:
        Parameters(**parameters)
    return str(refused.value)


def test_impossible_parameters_are_refused() -> None:
    assert "between 0 and 1" in refusal(late=1.5)
    assert "more than 1" in refusal(late=0.5, torn=0.6)
    assert "at least one line" in refusal(lines=0)
    assert "at least one line" in refusal(hours=0.0)
    assert "at least one line" in refusal(hours=float("nan"))
    assert "partitions is 0" in refusal(partitions=0)
    assert "years 1970" in refusal(start=-1)
    assert "rate is 0" in refusal(rate=0.0)
    assert "rate is 1e" in refusal(rate=1e6)
    assert "Change visitors or rate" in refusal(visitors=5)


def test_a_log_and_its_truth_are_files(tmp_path: Path) -> None:
    parameters = Parameters(lines=50, torn=0.1)
    totals = write_log(parameters, tmp_path / "log", progress=lambda _: None)
    records, tables, told = generated(parameters)
    assert (tmp_path / "log/access.log").read_bytes().splitlines() == [record.line for record in records]
    truth = tmp_path / "log/truth"
    written = {path.stem: [json.loads(row) for row in path.read_text().splitlines()] for path in truth.glob("*.jsonl")}
    assert written == tables
    assert json.loads((truth / "totals.json").read_text()) == totals
    assert totals.items() >= told.items()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="is not empty"):
        write_log(Parameters(lines=1), tmp_path, progress=lambda _: None)
    with pytest.raises(PipelineError, match="cannot write to"):
        write_log(Parameters(lines=1), tmp_path / "file" / "log", progress=lambda _: None)
