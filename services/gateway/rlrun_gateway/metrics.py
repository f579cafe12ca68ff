"""The gateway's numbers. Label values come from fixed tables only, so their number is bounded."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram

# Names that get a label of their own; clients choose names, so the rest is counted together.
KNOWN_IGNORED = frozenset(
    {
        "user", "metadata", "parallel_tool_calls", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
        "reasoning_effort", "reasoning", "verbosity", "prediction", "min_p", "best_of", "thinking", "enable_thinking", "provider",
        "tools.function.strict",
    }
)  # fmt: skip
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_requests = Counter("rlrun_gateway_requests", "Answers by route and status", ["route", "status"])
_latency = Histogram("rlrun_gateway_latency_seconds", "Time from the request's head to the answer's end", ["route"], buckets=_BUCKETS)
_first_byte = Histogram("rlrun_gateway_first_byte_seconds", "Time to the first chunk of a stream, which names the role", buckets=_BUCKETS)
_in_flight = Gauge("rlrun_gateway_in_flight_requests", "Requests being answered", ["route"])
_ignored = Counter("rlrun_gateway_ignored_options", "Options that were accepted and had no effect", ["option"])
_disconnects = Counter("rlrun_gateway_client_disconnects", "Calls cancelled because the client went away", ["route"])
_moves = Counter("rlrun_gateway_owner_retries", "Calls repeated because the session's owner moved or was away", ["cause"])


class RouteMetrics:
    """One route's children, looked up once."""

    def __init__(self, route: str) -> None:
        self.in_flight = _in_flight.labels(route)
        self.disconnects = _disconnects.labels(route)
        self._latency = _latency.labels(route)
        self._route = route
        self._by_status: dict[int, Counter] = {}

    def answered(self, status: int, seconds: float) -> None:
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = _requests.labels(self._route, str(status))
        counter.inc()
        self._latency.observe(seconds)


def first_byte(seconds: float) -> None:
    _first_byte.observe(seconds)


def ignored(options: Iterable[str]) -> None:
    for option in options:
        _ignored.labels(option if option in KNOWN_IGNORED else "other").inc()


def owner_retry(cause: str) -> None:
    _moves.labels(cause).inc()
