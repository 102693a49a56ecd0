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
    records, tables, _ = generated(Parameters(lines=18_000, rate=0.72))
    return recount.well_formed(record.line for record in records), tables


@pytest.fixture(scope="module")
def undisturbed(long_log: tuple[list[recount.Line], Tables]) -> list[recount.Line]:
    return long_log[0]


@pytest.fixture(scope="module")
def disturbed() -> tuple[list[Record], Tables, dict[str, Any]]:
    """A log with all mishaps."""
    return generated(Parameters(lines=8000, late=0.05, torn=0.02, duplicates=0.03, partitions=3))


@given(any_parameters)
@settings(max_examples=examples(10))
def test_the_same_parameters_make_the_same_log_and_truth(parameters: Parameters) -> None:
    assert generated(parameters) == generated(parameters)


def test_another_seed_makes_another_log() -> None:
    assert lines_of(Parameters(seed=1, lines=10)) != lines_of(Parameters(seed=2, lines=10))


@given(any_parameters)
@settings(max_examples=examples(20))
def test_a_recount_of_the_lines_gives_the_truth(parameters: Parameters) -> None:
    records, tables, _ = generated(parameters)
    counted = recount.recounted(recount.well_formed(record.line for record in records))
    assert {name: in_any_order(tables[name]) for name in counted} == {
        name: in_any_order(rows) for name, rows in counted.items()
    }


@given(any_parameters)
@settings(max_examples=examples(20))
def test_a_recount_finds_the_late_lines_of_each_partition(parameters: Parameters) -> None:
    records, tables, _ = generated(parameters)
    place = {record.key.decode(): record.partition for record in records}
    late = recount.late_by_s(recount.well_formed(record.line for record in records), place)
    told = {row["partition"]: Counter(row["late_by_s"]) for row in tables["partitions"]}
    assert {partition: counts for partition, counts in told.items() if counts} == {
        partition: Counter({str(by): count for by, count in counts.items()}) for partition, counts in late.items()
    }


@given(any_parameters)
@settings(max_examples=examples(20))
def test_the_quarantined_lines_are_those_not_well_formed(parameters: Parameters) -> None:
    records, tables, _ = generated(parameters)
    good = {line.number + 1 for line in recount.well_formed(record.line for record in records)}
    assert {row["line"] for row in tables["quarantined"]} == set(range(1, len(records) + 1)) - good


@given(any_parameters)
@settings(max_examples=examples(10))
def test_quarantined_lines_have_their_places_in_the_partitions(parameters: Parameters) -> None:
    records, tables, _ = generated(parameters)
    for row in tables["quarantined"]:
        before = records[: row["line"] - 1]
        assert row["partition"] == records[row["line"] - 1].partition
        assert row["offset"] == sum(record.partition == row["partition"] for record in before)


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
    assert [len(lines_of(Parameters(lines=n, late=0.3, duplicates=0.3))) for n in (1, 2, 100, 1001)] == [
        1,
        2,
        100,
        1001,
    ]


def test_a_log_has_as_many_hours_as_asked() -> None:
    times = [line.time.timestamp() for line in recount.well_formed(lines_of(Parameters(hours=0.5, start=1000)))]
    assert min(times) == 1000
    assert 2700 < max(times) < 1000 + 1800


def test_a_log_ends_early_when_stopped() -> None:
    asked = iter([False] * 10 + [True])
    parameters = Parameters(lines=100, late=0.5)
    assert len(list(log(parameters, Truth(1, lambda *_: None), lambda: next(asked)))) == 10


@pytest.mark.parametrize("rate", [0.5, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (2.0, 100.0))])
def test_every_hour_has_as_many_lines_a_second_as_asked(rate: float) -> None:
    parameters = Parameters(rate=rate, hours=2.0 if rate < 10 else 0.05, start=0, duplicates=0.1)
    times = sorted(line.time.timestamp() for line in recount.well_formed(lines_of(parameters)))
    half = (parameters.hours or 0) * 1800
    for begin in (0, half):
        assert sum(begin <= time < begin + half for time in times) == pytest.approx(rate * half, rel=0.05)


def test_as_many_lines_are_torn_late_or_twice_as_asked(disturbed: tuple[list[Record], Tables, dict[str, Any]]) -> None:
    totals = disturbed[2]
    asked = {"quarantined": 0.02, "late": 0.05, "duplicates": 0.03}
    found = {name: totals[name] / (totals["lines"] - totals["duplicates"]) for name in asked}
    assert found == pytest.approx(asked, rel=0.15)


def test_every_partition_has_its_share_of_late_lines(disturbed: tuple[list[Record], Tables, dict[str, Any]]) -> None:
    partitions = disturbed[1]["partitions"]
    assert [row["late"] / row["lines"] for row in partitions] == pytest.approx([0.05] * 3, rel=0.3)


def test_lines_come_late_by_the_known_amounts() -> None:
    tables = generated(Parameters(lines=8000, late=0.05, rate=0.8))[1]
    late = Counter({int(by): count for by, count in tables["partitions"][0]["late_by_s"].items()})
    near = sum(count for by, count in late.items() if any(known <= by <= known + 60 for known in LATE_BY_S))
    # The rest were still on their way at the end.
    assert near > 0.7 * late.total()


def test_late_lines_are_the_same_lines_in_another_order() -> None:
    late, on_time = lines_of(Parameters(lines=2000, late=0.2)), lines_of(Parameters(lines=2000))
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


@pytest.fixture(scope="module")
def crawls(long_log: tuple[list[recount.Line], Tables]) -> dict[str, list[list[recount.Line]]]:
    """The requests of crawlers by kind."""
    lines, tables = long_log
    by_client: defaultdict[str, list[recount.Line]] = defaultdict(list)
    for line in lines:
        by_client[line.client].append(line)
    found: dict[str, list[list[recount.Line]]] = {kind: [] for kind in Kind}
    for row in tables["crawlers"]:
        found[row["kind"]].append(by_client[row["client"]])
    return found


def test_crawlers_are_described_by_their_requests(long_log: tuple[list[recount.Line], Tables]) -> None:
    lines, tables = long_log
    described = {
        row["client"]: (row["first"], row["last"], row["requests"], row["user_agent"]) for row in tables["crawlers"]
    }
    found: defaultdict[str, list[recount.Line]] = defaultdict(list)
    for line in lines:
        if line.client in described:
            found[line.client].append(line)
    assert described == {
        client: (recount.iso(own[0].time), recount.iso(own[-1].time), len(own), own[0].user_agent)
        for client, own in found.items()
    }


def test_crawlers_of_all_kinds_come_by(crawls: dict[str, list[list[recount.Line]]]) -> None:
    assert min(len(crawlers) for crawlers in crawls.values()) >= 5


def test_only_named_crawlers_have_other_names_than_browsers(crawls: dict[str, list[list[recount.Line]]]) -> None:
    named = {
        kind for kind, crawlers in crawls.items() if any(crawler[0].user_agent not in BROWSERS for crawler in crawlers)
    }
    assert named == {Kind.NAMED}


def test_robots_readers_begin_with_robots_txt(crawls: dict[str, list[list[recount.Line]]]) -> None:
    assert {requests[0].request for requests in crawls[Kind.ROBOTS_READER]} == {"GET /robots.txt HTTP/1.1"}


def test_page_walkers_view_many_pages(crawls: dict[str, list[list[recount.Line]]]) -> None:
    whole = crawls[Kind.PAGE_WALKER][:-1]
    assert min(len({line.page for line in requests}) for requests in whole) >= 60


def test_probers_find_nothing(crawls: dict[str, list[list[recount.Line]]]) -> None:
    assert {line.status for requests in crawls[Kind.PROBER] for line in requests} == {400, 403, 404}


def test_a_slow_drip_is_one_long_session(crawls: dict[str, list[list[recount.Line]]]) -> None:
    first = crawls[Kind.SLOW_DRIP][0]
    assert len(recount.sessions(first)) == 1
    assert (first[-1].time - first[0].time).total_seconds() > 2 * 3600


@given(st.binary(max_size=40), st.integers(1, 50))
def test_keys_are_in_the_partitions_of_kafkas_producers(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize(
    ("request_line", "page"),
    [
        ("GET /a/b.html HTTP/1.1", "/a/b.html"),
        ("GET /a?x=/b.png#c HTTP/1.1", "/a"),
        ("GET http://example.org:80/a HTTP/1.0", "/a"),
        ("GET http://example.org HTTP/1.1", None),
        ("GET /?u=http://example.org/b HTTP/1.1", "/"),
        ("GET /", "/"),
        ("GET /logo.JPEG?v=2 HTTP/1.1", None),
        ("GET /robots.txt HTTP/1.1", None),
        ("GET /a/robots.txt HTTP/1.1", "/a/robots.txt"),
        ("GET /png HTTP/1.1", "/png"),
        ("GET /a b HTTP/1.1", None),
        ("POST / HTTP/1.1", None),
        ("-", None),
    ],
)
def test_the_page_of_a_request(request_line: str, page: str | None) -> None:
    assert viewed_page(request_line) == page


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"late": 1.5}, "between 0 and 1"),
        ({"late": 0.5, "torn": 0.6}, "more than 1"),
        ({"lines": 0}, "at least one line"),
        ({"hours": 0.0}, "at least one line"),
        ({"hours": float("nan")}, "at least one line"),
        ({"partitions": 0}, "partitions is 0"),
        ({"start": -1}, "years 1970"),
        ({"rate": 0.0}, "rate is 0"),
        ({"rate": 1e6}, "rate is 1e"),
        ({"visitors": 5}, "Change visitors or rate"),
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Parameters(**wrong)


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


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(PipelineError, match="is not empty"):
        write_log(Parameters(lines=1), tmp_path, progress=lambda _: None)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="cannot write to"):
        write_log(Parameters(lines=1), tmp_path / "file" / "log", progress=lambda _: None)
