"""A few rounds of the copier; `make copier` plays more rounds with more kills."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.drivers.contract import MissingClientError
from tests.clients.drivers.java_driver import java_command
from tests.copier.rounds import BROKER_SETTINGS, COPIER, Mode, Plan, Victim, run_round
from tests.support.killable_broker import KillableBroker, killable_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableBroker]:
    try:
        java_command(COPIER)
    except MissingClientError as missing:
        pytest.skip(str(missing))
    with killable_broker(tmp_path_factory.mktemp("broker"), BROKER_SETTINGS) as broker:
        yield broker


@pytest.mark.java
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("mode", "victim"),
    [
        ("group", "broker"),
        pytest.param("assigned", "client", marks=pytest.mark.slow),
        pytest.param("assigned", "broker", marks=pytest.mark.slow),
        pytest.param("group", "client", marks=pytest.mark.slow),
    ],
)
def test_the_copy_equals_the_original_despite_kills(
    broker: KillableBroker, mode: Mode, victim: Victim, tmp_path: Path
) -> None:
    run_round(broker, Plan(mode=mode, victim=victim, seed=1), tmp_path)
