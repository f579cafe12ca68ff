"""The process-level variables: where this process listens and whom it talks to. All else is in the RLRun document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from rlrun.errors import ConfigError
from rlrun.spec.messages import closest

PREFIX = "RLRUN_"
# Read by the command line's client commands only; a shell that starts services may hold them too.
CLIENT_VARIABLES = frozenset({"RLRUN_URL", "RLRUN_SESSION_KEY"})
SECRET_VARIABLES = frozenset({"RLRUN_REDIS_URL"})
_SERVICE_LINK = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?$")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


@dataclass(frozen=True, kw_only=True)
class ProcessEnv:
    """One field per variable: `ops_port` is RLRUN_OPS_PORT."""

    config: Path | None = None  # the RLRun document
    bind: str = "127.0.0.1"  # address to listen on
    port: int | None = None  # None: the service's own port
    ops_port: int | None = None
    advertise: str | None = None  # host or host:port at which others reach this process
    redis_url: str | None = None
    router: tuple[str, ...] = ()  # host:port of every Router
    admin_key_file: Path | None = None
    service_token_file: Path | None = None
    tls_dir: Path | None = None
    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> ProcessEnv:
        """Reads `os.environ` or the like; an empty variable counts as absent.

        Raises:
            ConfigError: lists every unknown or wrong RLRUN_ variable, one a line.
        """
        faults: list[str] = []
        values: dict[str, object] = {}
        for variable, text in sorted(environ.items()):
            if not variable.startswith(PREFIX) or variable in CLIENT_VARIABLES:
                continue
            if _SERVICE_LINK.search(variable) or (variable.endswith("_PORT") and text.startswith("tcp://")):
                faults.append(f"{variable}: Kubernetes made it for a Service; set enableServiceLinks: false in the pod")
            elif variable not in _PARSERS:
                faults.append(f"{variable}: unknown variable; {_suggestion(variable)}")
            elif text.strip():
                try:
                    values[variable.removeprefix(PREFIX).lower()] = _PARSERS[variable](text.strip())
                except ValueError as error:
                    got = "(hidden)" if variable in SECRET_VARIABLES else text
                    faults.append(f"{variable}: got {got}; {error}")
        if faults:
            raise ConfigError("\n".join(faults), param=faults[0].partition(":")[0])
        return cls(**values)  # type: ignore[arg-type]


def _suggestion(variable: str) -> str:
    match = closest(variable, list(_PARSERS))
    return f"did you mean {match}?" if match is not None else f"unset it; known: {', '.join(_PARSERS)}"


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) <= 65_535:
        raise ValueError("must be a port number, 1 to 65535")
    return int(text)


def _address(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= 65_535:
        raise ValueError(f"each entry must be host:port, {text!r} is not; separate several by commas")
    return text


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(_address(part.strip()) for part in text.split(",") if part.strip())


def _host(text: str) -> str:
    if re.search(r"[\s/]", text):
        raise ValueError("must be a host name or an address, without scheme and path")
    return text


def _redis_url(text: str) -> str:
    if not re.match(r"(redis|rediss|unix)://\S+$", text):
        raise ValueError("must begin with redis://, rediss:// or unix://; write redis://HOST:6379/0")
    return text


def _log_format(text: str) -> LogFormat:
    try:
        return LogFormat(text.lower())
    except ValueError:
        raise ValueError("must be text or json") from None


def _log_level(text: str) -> LogLevel:
    try:
        return LogLevel(text.upper())
    except ValueError:
        raise ValueError(f"must be one of {', '.join(LogLevel)}") from None


_PARSERS: dict[str, Callable[[str], object]] = {
    "RLRUN_CONFIG": Path,
    "RLRUN_BIND": _host,
    "RLRUN_PORT": _port,
    "RLRUN_OPS_PORT": _port,
    "RLRUN_ADVERTISE": _host,
    "RLRUN_REDIS_URL": _redis_url,
    "RLRUN_ROUTER": _addresses,
    "RLRUN_ADMIN_KEY_FILE": Path,
    "RLRUN_SERVICE_TOKEN_FILE": Path,
    "RLRUN_TLS_DIR": Path,
    "RLRUN_LOG_FORMAT": _log_format,
    "RLRUN_LOG_LEVEL": _log_level,
}
assert [field.name for field in fields(ProcessEnv)] == [name.removeprefix(PREFIX).lower() for name in _PARSERS]
