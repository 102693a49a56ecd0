"""All versions of all requests and replies, for tests that read or write each of them."""

from typing import Final

import pytest

from headrace.wire.apis import ApiKey, VersionRange, versions

Versions = list[tuple[ApiKey, int]]

_RANGES: Final[dict[ApiKey, VersionRange]] = {api: known for api in ApiKey if (known := versions(api)) is not None}
EVERY_VERSION: Final[Versions] = [
    (api, version) for api, known in _RANGES.items() for version in range(known.lowest, known.highest + 1)
]
_HIGHEST: Final[Versions] = [(api, known.highest) for api, known in _RANGES.items()]

many_versions: Final = pytest.mark.parametrize(
    "api_versions",
    [
        pytest.param(_HIGHEST, id="highest"),
        # Importing the schemas of all versions takes two seconds.
        pytest.param(EVERY_VERSION, id="all", marks=pytest.mark.slow),
    ],
)
"""Runs a test with the highest version of each API, and in `make slow` with all versions."""
