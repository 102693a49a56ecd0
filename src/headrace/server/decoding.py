"""Decode request bodies, after checking array lengths and removing unknown tagged fields."""

from typing import Any, TypeVar

from headrace.server.context import RequestContext
from headrace.server.frames import InvalidRequestError
from headrace.slices import Steps, run_slice
from headrace.types import Buffer
from headrace.wire.apis import ApiKey, Schema, max_entries
from headrace.wire.bounds import TooManyEntriesError
from headrace.wire.controls.step_reader import StepReader

T = TypeVar("T")


def count_entries(context: RequestContext, api_schema: Schema, frame: memoryview, position: int) -> int:
    """Count the items of all arrays. Raises InvalidRequestError for impossible array lengths or too many items."""
    try:
        return api_schema.check_request(frame, position)
    except TooManyEntriesError:
        raise InvalidRequestError(
            f"{api_name(context)} has {len(frame)} bytes with more than {max_entries(context.api_key)} entries,"
            " the limit for one request: split it"
        ) from None
    except ValueError as error:
        raise InvalidRequestError(f"{api_name(context)} cannot be read: {error}") from error


def strip_unknown_tags(context: RequestContext, api_schema: Schema, frame: Buffer, position: int) -> Steps[Buffer]:
    """Check string lengths, and return the body without unknown tagged fields. Raises InvalidRequestError."""
    if api_schema.strict_request is None:
        return frame[position:]
    try:
        return (yield from api_schema.strict_request(frame, position))
    except TooManyEntriesError:
        limit = max_entries(context.api_key)
        raise InvalidRequestError(f"{api_name(context)} has more than {limit} unknown tagged fields") from None
    except (ValueError, IndexError) as error:
        raise InvalidRequestError(f"{api_name(context)} cannot be read: {error}") from error


def decode(context: RequestContext, api_schema: Schema, frame: Buffer, position: int) -> Any:
    """Decode the body of a request. Raises InvalidRequestError."""
    try:
        try:
            return api_schema.decode_request(frame, position)[0]
        except KeyError:  # kio does not skip unknown tagged fields
            return api_schema.decode_request(
                finish_at_once(strip_unknown_tags(context, api_schema, frame, position)), 0
            )[0]
    except InvalidRequestError:
        raise
    except Exception as error:
        raise InvalidRequestError(f"{api_name(context)} cannot be read: {error}") from error


def decode_in_steps(context: RequestContext, reader: StepReader, content: Buffer) -> Steps[Any]:
    """Check and decode a body without unknown tagged fields. Raises InvalidRequestError."""
    try:
        request, _ = yield from reader(content, 0)
    except Exception as error:
        raise InvalidRequestError(f"{api_name(context)} cannot be read: {error}") from error
    return request


def finish_at_once(steps: Steps[T]) -> T:
    """Run all steps without a pause. Use it only if they are few."""
    while (done := run_slice(steps)) is None:
        pass
    return done.result


def api_name(context: RequestContext) -> str:
    return f"{ApiKey(context.api_key).name} v{context.api_version}"
