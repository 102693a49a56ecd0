"""UpdateFeatures (KIP-584)."""

from typing import Any

from headrace.cluster.features import Features, FeatureUpdate, UpgradeType
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, Reply, RequestContext
from headrace.types import Request
from headrace.wire.apis import ApiKey


class FeaturesApi:
    """Handles UpdateFeatures."""

    def __init__(self, features: Features) -> None:
        self._features = features

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.UPDATE_FEATURES: self.update}

    async def update(self, _: RequestContext, request: Request) -> Reply:
        """Apply all updates or none. Raises KafkaError for an invalid one: as in Kafka, the whole request fails."""
        updates = [_update(requested) for requested in request.feature_updates]
        for update in updates:
            try:
                self._features.check(update)
            except KafkaError as error:
                raise KafkaError(
                    error.code,
                    f"The update failed for all features since the following feature had an error: {error.message}",
                ) from None
        if not getattr(request, "validate_only", False):
            await self._features.update(updates)
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "results": [
                {"feature": item.feature, "error_code": ErrorCode.none, "error_message": None} for item in updates
            ],
        }


def _update(requested: Any) -> FeatureUpdate:
    # Accept `allow_downgrade` of version 0. Kafka ignores it, so clients from before 3.3 cannot downgrade.
    upgrade_type = UpgradeType.SAFE_DOWNGRADE if getattr(requested, "allow_downgrade", False) else UpgradeType.UPGRADE
    return FeatureUpdate(
        requested.feature, requested.max_version_level, getattr(requested, "upgrade_type", upgrade_type)
    )
