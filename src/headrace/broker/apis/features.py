"""UpdateFeatures (KIP-584)."""

from typing import Any

from headrace.cluster.features import Features, FeatureUpdate
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, Reply, RequestContext
from headrace.types import Request
from headrace.wire.apis import ApiKey

_UPGRADE = 1


class FeaturesApi:
    """Handles UpdateFeatures."""

    def __init__(self, features: Features) -> None:
        self._features = features

    def routes(self) -> dict[ApiKey, Handler]:
        return {ApiKey.UPDATE_FEATURES: self.update}

    async def update(self, context: RequestContext, request: Request) -> Reply:
        """Apply all updates, or none."""
        updates = [_update(requested) for requested in request.feature_updates]
        failed: tuple[str, KafkaError] | None = None
        for update in updates:
            try:
                self._features.check(update)
            except KafkaError as error:
                failed = update.feature, error
                break
        if failed is not None:
            feature, refusal = failed
            if context.api_version >= 2:
                raise KafkaError(
                    refusal.code,
                    f"The update failed for all features since the following feature had an error: {refusal.message}",
                )
            results = [
                {"feature": item.feature, "error_code": refusal.code, "error_message": refusal.message}
                if item.feature == feature
                else {"feature": item.feature, "error_code": ErrorCode.none, "error_message": None}
                for item in updates
            ]
            return {"error_code": ErrorCode.none, "error_message": None, "results": results}
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
    upgrade_type = getattr(requested, "upgrade_type", _UPGRADE)
    may_downgrade = getattr(requested, "allow_downgrade", False) or upgrade_type != _UPGRADE
    return FeatureUpdate(requested.feature, requested.max_version_level, may_downgrade)
