"""Logs: one line per event, text for people and JSON for containers; never prompts, answers or keys."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        event.update({name: value for name, value in record.__dict__.items() if name not in _STANDARD})
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(event, enc_hook=str).decode()


def configure_logging(*, service: str, style: Literal["text", "json"], level: str) -> None:
    """Sends the whole process's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter(service)
        if style == "json"
        else logging.Formatter(f"%(asctime)s %(levelname)-7s {service} %(name)s: %(message)s", "%H:%M:%S")
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # Its start and stop are told by the service's own life cycle.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
