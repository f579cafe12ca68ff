"""The one place that knows how Redis fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import BusyLoadingError, ConnectionError, MaxConnectionsError, RedisError, TimeoutError

from rlrun.errors import Internal, StoreUnavailable


@contextmanager
def store_errors() -> Iterator[None]:
    """Raises:
    StoreUnavailable: Redis did not answer in time, is gone or loads its data.
    Internal: Redis answered with an error.
    """
    try:
        yield
    except (ConnectionError, TimeoutError, BusyLoadingError, MaxConnectionsError, OSError) as error:
        raise StoreUnavailable(f"Redis did not answer: {type(error).__name__}; is it running and reachable?") from error
    except RedisError as error:
        raise Internal(f"Redis refused a command: {error}") from error
