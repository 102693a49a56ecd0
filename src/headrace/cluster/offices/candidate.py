"""A candidate for controller: a broker that takes office when there is no controller."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

from headrace.cluster import znodes
from headrace.cluster.loading import decoded
from headrace.cluster.membership.registration import WatchedStore
from headrace.cluster.offices.event_queue import Figures
from headrace.cluster.offices.fenced_store import DeposedError
from headrace.cluster.offices.term import Term, TermSettings
from headrace.cluster.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    Node,
    NodeExistsError,
    NoNodeError,
    Set,
    StoreError,
    StoreUnavailableError,
)
from headrace.errors import ErrorCode, KafkaError

_MIGRATION: Final = "/migration"
_FAREWELL_S: Final = 2.0
"""Timeout (s) for deleting `/controller`. After it, the node remains until the session ends."""
_MIGRATION_CHECK_S: Final = 10.0
_PAUSE_S: Final = 1.0
"""Pause (s) after an unexpected error."""

log = logging.getLogger(__name__)


class Candidate:
    """Takes office when there is no controller, and leaves when another broker takes over or a write fails.

    Call `stand` when the broker is registered, and after every session change.
    """

    def __init__(
        self,
        store: WatchedStore,
        broker_id: int,
        settings: TermSettings,
        *,
        now_ms: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._settings = settings
        self._now_ms = now_ms
        self._loop = loop
        self.term: Term | None = None
        """None while another broker is the controller."""
        self.figures = Figures()
        self._unclean_elections = 0
        """Unclean elections of earlier terms."""
        self._news = asyncio.Event()
        self._must_refresh = False
        self._failure: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def unclean_elections(self) -> int:
        """Number of leaders that this broker has elected from outside the ISR, in all its terms as controller."""
        return self._unclean_elections + (0 if self.term is None else self.term.machine.unclean_elections)

    def current(self) -> Term:
        """Return the term of this broker. Raises KafkaError(not_controller)."""
        if self.term is None:
            raise KafkaError(ErrorCode.not_controller, "This is not the correct controller for this cluster.")
        return self.term

    def stand(self) -> None:
        """Take office if there is no controller, and read all watched nodes again."""
        self._must_refresh = True
        self._news.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    async def expire(self) -> None:
        """Leave office, because the session has expired: another broker may be the controller."""
        await self._end()

    async def close(self) -> None:
        """Leave office for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._resign()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                if self._failure is not None:
                    await self._handle_failure(self._failure)
                await self._follow()
            except StoreError as error:
                log.error("The election of a controller failed; trying again in %g s: %s", _PAUSE_S, error)
                await asyncio.sleep(_PAUSE_S)
                self._news.set()
            except Exception:
                log.exception("The election of a controller failed; trying again (this is a bug, please report it)")
                await asyncio.sleep(_PAUSE_S)
                self._news.set()

    async def _follow(self) -> None:
        """Read and watch `/controller`, and take or leave office accordingly."""
        (epoch_node,) = await self._store.get_many([znodes.CONTROLLER_EPOCH])
        while (node := await self._store.watched(znodes.CONTROLLER, self._news.set)) is None:
            await self._end()
            if await self._store.exists(_MIGRATION) is not None:
                log.error("This broker cannot be controller: the cluster is migrating to KRaft, which is not supported")
                self._loop.call_later(_MIGRATION_CHECK_S, self._news.set)
                return
            await self._run_for_office()
            (epoch_node,) = await self._store.get_many([znodes.CONTROLLER_EPOCH])
        mine = node.stat.owner == self._store.session
        if not mine:
            if self.term is not None:
                log.warning("Broker %s is the controller now", _id_in(node))
            await self._end()
        elif self.term is None and epoch_node is not None:
            # A failed term left the node. The check ensures that nobody else was elected since the epoch was read.
            await self._store.multi(
                (Check(znodes.CONTROLLER_EPOCH, epoch_node.stat.version), Delete(znodes.CONTROLLER))
            )
            self._news.set()
        elif self.term is not None and self._must_refresh:
            self.term.refresh()
        self._must_refresh = False

    async def _run_for_office(self) -> None:
        """Take office unless another broker does so first."""
        (epoch_node,) = await self._store.get_many([znodes.CONTROLLER_EPOCH])
        office = Create(znodes.CONTROLLER, znodes.encode_controller(self._broker_id, self._now_ms()), ephemeral=True)
        if epoch_node is None:
            epoch, version = 1, 0
            write: Create | Set = Create(znodes.CONTROLLER_EPOCH, b"1")
        else:
            epoch = decoded(znodes.CONTROLLER_EPOCH, int, epoch_node.data) + 1
            version = epoch_node.stat.version + 1
            write = Set(znodes.CONTROLLER_EPOCH, str(epoch).encode(), epoch_node.stat.version)
        try:
            await self._store.multi((office, write))
        except (NodeExistsError, BadVersionError):
            return
        log.info("This broker is now the controller, with epoch %d", epoch)
        self._must_refresh = False
        self._epoch_version = version
        self.term = Term(
            self._store,
            self._broker_id,
            epoch,
            version,
            self._settings,
            figures=self.figures,
            ended=self._term_failed,
            loop=self._loop,
        )

    def _term_failed(self, error: Exception) -> None:
        self._failure = error
        self._news.set()

    async def _handle_failure(self, error: Exception) -> None:
        self._failure = None
        if isinstance(error, DeposedError):
            log.warning("Another broker has become controller: this one resigns")
            await self._end()
            return
        log.error("This broker resigns as controller after an unexpected error; an election follows", exc_info=error)
        await self._resign()
        await asyncio.sleep(_PAUSE_S)  # another broker may not have the problem

    async def _resign(self) -> None:
        """End the term, and delete `/controller` unless another broker has it."""
        if self.term is None:
            return
        await self._end()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._store.multi(
                    (Check(znodes.CONTROLLER_EPOCH, self._epoch_version), Delete(znodes.CONTROLLER))
                )
        except (BadVersionError, NoNodeError):
            pass  # another broker is the controller
        except (StoreUnavailableError, TimeoutError):
            log.debug("Could not delete /controller; it disappears when the session ends")

    async def _end(self) -> None:
        term, self.term = self.term, None
        if term is not None:
            self._unclean_elections += term.machine.unclean_elections
            await term.close()
            log.info("This broker is no longer the controller")


def _id_in(node: Node) -> str:
    try:
        return str(json.loads(node.data).get("brokerid"))
    except ValueError:
        return "?"
