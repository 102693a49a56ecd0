"""UpdateFeatures: `transaction.version` is lowered and raised, and invalid updates are refused."""

from collections.abc import Iterator
from typing import Final

import pytest

from headrace.wire.apis import ApiKey
from tests.parity.both import Both, Message, Names, every_version
from tests.parity.random_transactions import compare_random_requests
from tests.support.waiting import wait_for

NAME: Final = "transaction.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def request(version: int, *updates: tuple[str, int, int], validate_only: bool = False) -> Message:
    """An update of features, each with its level and upgrade type."""
    return {
        "timeout": 5000,
        "feature_updates": [
            {"feature": feature, "max_version_level": level, "upgrade_type": upgrade_type, "allow_downgrade": False}
            for feature, level, upgrade_type in updates
        ],
        "validate_only": validate_only,
    }


def levels(both: Both) -> list[int]:
    asked = {"client_software_name": "parity", "client_software_version": "1"}
    answers = [side.ask(ApiKey.API_VERSIONS, 3, asked, "parity") for side in both.sides]
    return [
        {item["name"]: item["max_version_level"] for item in answer["finalized_features"]}.get(NAME, 0)
        for answer in answers
    ]


@pytest.fixture
def restored(both: Both) -> Iterator[Both]:
    """Both brokers, whose features get their highest level in the end."""
    yield both
    for side in both.sides:
        side.ask(ApiKey.UPDATE_FEATURES, 1, request(1, (NAME, 2, UPGRADE)), "parity")
    wait_for(lambda: levels(both) == [2, 2], "the highest level")


@every_version(ApiKey.UPDATE_FEATURES)
def test_invalid_updates(restored: Both, version: int) -> None:
    updates = [
        [(NAME, 3, UPGRADE)],
        [(NAME, -1, UPGRADE)],
        [(NAME, 1, UPGRADE)],
        [("unknown", 1, UPGRADE)],
        [("", 1, UPGRADE)],
        [("unknown", -1, UPGRADE)],
        [("unknown", 1, UPGRADE), (NAME, 2, UPGRADE)],
        [(NAME, 2, UPGRADE), ("unknown", 1, UPGRADE)],
        [],
    ]
    if version >= 1:
        updates += [
            [(NAME, 1, 0)],
            [(NAME, 1, 4)],
            [(NAME, -1, 4)],
            [(NAME, -1, SAFE_DOWNGRADE)],
            [(NAME, 3, SAFE_DOWNGRADE)],
        ]
    for each in updates:
        restored.ask(ApiKey.UPDATE_FEATURES, version, request(version, *each), case=str(each))
        assert levels(restored) == [2, 2], each


@every_version(ApiKey.UPDATE_FEATURES, since=1)
def test_levels_are_lowered_and_raised(restored: Both, version: int) -> None:
    for level, upgrade_type, validate_only in (
        (1, SAFE_DOWNGRADE, True),
        (1, SAFE_DOWNGRADE, False),
        (1, SAFE_DOWNGRADE, False),
        (2, SAFE_DOWNGRADE, False),
        (0, UNSAFE_DOWNGRADE, False),
        (2, UPGRADE, True),
        (2, UPGRADE, False),
    ):
        update = request(version, (NAME, level, upgrade_type), validate_only=validate_only)
        case = f"{level} {upgrade_type} {validate_only}"
        restored.ask(ApiKey.UPDATE_FEATURES, version, update, case=case)
        wait_for(lambda: len(set(levels(restored))) == 1, f"equal levels after {case}")


def test_transactions_with_a_lowered_level(restored: Both, name: Names) -> None:
    topic = restored.create(name(), 2)
    for side in restored.sides:
        side.ask(ApiKey.UPDATE_FEATURES, 1, request(1, (NAME, 1, SAFE_DOWNGRADE)), "parity")
    wait_for(lambda: levels(restored) == [1, 1], "the lowered level")
    for seed in range(100, 108):
        compare_random_requests(restored, topic, seed)
