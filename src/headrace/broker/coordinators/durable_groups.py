"""Delay the coordinator's replies until its records are committed."""

from collections.abc import Awaitable, Generator, Mapping

from headrace.broker.coordinators.offsets_topic import NAME
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.purgatory import Purgatory
from headrace.server.context import Answer, Handler, RawReply, Reply, RequestContext
from headrace.slices import Steps, finish
from headrace.types import Request
from headrace.wire.apis import ApiKey


def durable(routes: Mapping[ApiKey, Handler], purgatory: Purgatory) -> dict[ApiKey, Handler]:
    """Wrap handlers so that replies wait until all appended records of `__consumer_offsets` are committed.

    They raise KafkaError(coordinator_not_available) if that fails.
    """
    return {key: _durable(handler, purgatory) for key, handler in routes.items()}


def _durable(handler: Handler, purgatory: Purgatory) -> Handler:
    def handle(context: RequestContext, request: Request) -> Answer:
        reply = handler(context, request)
        if type(reply) is not dict and isinstance(reply, Generator):
            return _once_committed(_finished(reply), purgatory)
        later = not isinstance(reply, RawReply) and isinstance(reply, Awaitable)
        return _once_committed(reply, purgatory) if later or purgatory.uncommitted else reply

    return handle


async def _finished(steps: Steps[Reply | Awaitable[Reply]]) -> Reply:
    reply = await finish(steps)
    return await reply if not isinstance(reply, RawReply) and isinstance(reply, Awaitable) else reply


async def _once_committed(reply: Reply | Awaitable[Reply], purgatory: Purgatory) -> Reply:
    if not isinstance(reply, RawReply) and isinstance(reply, Awaitable):
        reply = await reply
    error = await purgatory.topic_committed(NAME)
    if error is not None:
        raise KafkaError(ErrorCode.coordinator_not_available, str(error)) from error
    return reply
