"""Which DataProxy owns a session: a bounded cache in front of the Router, and the one rule for calls whose owner moved."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from rlrun.errors import NoMember, PermissionDenied, RlrunError, SessionGone, SessionMoved, Unavailable
from rlrun.proto import router_pb2
from rlrun.rpc.interfaces import RouterService, SessionService
from rlrun_gateway import metrics
from rlrun_gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

Result = TypeVar("Result")
SessionCall = Callable[[SessionService, router_pb2.Placement, int], Awaitable[Result]]
_FIRST_BACKOFF_SECONDS = 0.05
_MAX_BACKOFF_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SessionName:
    """How a request names its session: by a key's hash, by an id (admin key), or by both (which must agree)."""

    key_hash: str = ""
    session_id: str = ""


def _may_retry(error: RlrunError) -> bool:
    """True where another owner, or the same one a moment later, can answer. A store that is down is not such a case."""
    return isinstance(error, (SessionMoved, NoMember)) or type(error) is Unavailable


class Placements:
    """Resolves names and runs calls at the owner."""

    def __init__(self, router: RouterService, session_service: Callable[[str], SessionService], settings: GatewaySettings) -> None:
        self._router = router
        self._session_service = session_service
        self._settings = settings
        self._cache: OrderedDict[SessionName, tuple[router_pb2.Placement, float]] = OrderedDict()

    def forget(self, name: SessionName) -> None:
        self._cache.pop(name, None)

    async def resolve(self, name: SessionName, *, fresh: bool = False) -> router_pb2.Placement:
        """Raises Unauthenticated (unknown key), NotFound (unknown id), PermissionDenied (key of another session)."""
        now = asyncio.get_running_loop().time()
        found = self._cache.get(name)
        if found is not None and not fresh and found[1] > now:
            self._cache.move_to_end(name)
            return found[0]
        placement = await self._ask(name)
        self._cache[name] = (placement, now + self._settings.placement_ttl_seconds)
        self._cache.move_to_end(name)
        if len(self._cache) > self._settings.placement_cache_size:
            self._cache.popitem(last=False)
        return placement

    async def _ask(self, name: SessionName) -> router_pb2.Placement:
        if not name.key_hash:
            return await self._router.resolve(router_pb2.ResolveRequest(session_id=name.session_id))
        placement = await self._router.resolve(router_pb2.ResolveRequest(key_hash=name.key_hash))
        if name.session_id and placement.session_id != name.session_id:
            # The key may have been given to a newer session since; then it still opens its older ones.
            placement = await self._router.resolve(router_pb2.ResolveRequest(session_id=name.session_id))
            if placement.key_hash != name.key_hash:
                raise PermissionDenied(f"This key does not open session {name.session_id}.")
        return placement

    async def locate(self, name: SessionName) -> router_pb2.Placement:
        """Like `resolve`, but waits for a Router or an owner that is away for a moment."""
        return await self.call(name, _placement_only)

    async def call(
        self,
        name: SessionName,
        run: SessionCall[Result],
        *,
        fresh: bool = False,
        follow: bool = True,
        untouched: Callable[[], bool] = lambda: True,
    ) -> Result:
        """Runs `run(service, placement, attempt)` at the session's owner, and again where the owner changed.

        `untouched` tells whether a repeated call would still be invisible to the client.
        `fresh` skips the cache: for calls that must not reach a session that its key has left.
        `follow` goes on in the newer session that the key opens when the known one is gone.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._settings.move_timeout_seconds
        backoff = _FIRST_BACKOFF_SECONDS
        attempt = 0
        followed = False
        placement: router_pb2.Placement | None = None
        while True:
            try:
                if placement is None:
                    placement = await self.resolve(name, fresh=fresh)
                return await run(self._session_service(placement.owner_address), placement, attempt)
            except SessionGone:
                self.forget(name)
                if followed or not follow or placement is None or not untouched():
                    raise
                newer = await self.resolve(name, fresh=True)
                if (newer.session_id, newer.fence, newer.owner_id) == (placement.session_id, placement.fence, placement.owner_id):
                    self.forget(name)
                    raise
                followed, placement = True, newer
                metrics.owner_retry("session_gone")
            except RlrunError as error:
                if not _may_retry(error):
                    raise
                self.forget(name)
                if not untouched():
                    raise _as_unavailable(error, "inside the answer") from None
                if loop.time() + backoff > give_up:
                    raise _as_unavailable(error, f"and no new one answered within {self._settings.move_timeout_seconds:g} s") from None
                metrics.owner_retry(error.code)
                log.info("session's owner cannot answer (%s), trying again: %s", error.code, error)
                await asyncio.sleep(backoff * random.uniform(0.75, 1.0))
                backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)
                placement, fresh = None, True
            attempt += 1


async def _placement_only(service: SessionService, placement: router_pb2.Placement, attempt: int) -> router_pb2.Placement:
    return placement


def _as_unavailable(error: RlrunError, when: str) -> RlrunError:
    """A move is between services; a client learns only that trying again helps."""
    return Unavailable(f"The session's owner changed {when}; try again.") if isinstance(error, SessionMoved) else error
