from pathlib import Path

import pytest

from rlrun.errors import ConfigError
from rlrun.spec import LogFormat, LogLevel, ProcessEnv


def test_nothing_set_gives_loopback_and_no_secrets() -> None:
    assert ProcessEnv.read({"HOME": "/root", "RLRUN_PORT": "", "RLRUN_URL": "http://h"}) == ProcessEnv()
    assert ProcessEnv().bind == "127.0.0.1"


def test_every_variable_has_a_field() -> None:
    env = ProcessEnv.read(
        {
            "RLRUN_CONFIG": "/etc/rlrun.yaml",
            "RLRUN_BIND": "0.0.0.0",
            "RLRUN_PORT": "7070",
            "RLRUN_OPS_PORT": "9999",
            "RLRUN_ADVERTISE": "10.0.0.1",
            "RLRUN_REDIS_URL": "redis://:secret@h:6379/0",
            "RLRUN_ROUTER": "a:7070, [::1]:7070",
            "RLRUN_ADMIN_KEY_FILE": "/k/admin",
            "RLRUN_SERVICE_TOKEN_FILE": "/k/token",
            "RLRUN_TLS_DIR": "/k/tls",
            "RLRUN_LOG_FORMAT": "json",
            "RLRUN_LOG_LEVEL": "debug",
        }
    )
    assert env == ProcessEnv(
        config=Path("/etc/rlrun.yaml"),
        bind="0.0.0.0",
        port=7070,
        ops_port=9999,
        advertise="10.0.0.1",
        redis_url="redis://:secret@h:6379/0",
        router=("a:7070", "[::1]:7070"),
        admin_key_file=Path("/k/admin"),
        service_token_file=Path("/k/token"),
        tls_dir=Path("/k/tls"),
        log_format=LogFormat.JSON,
        log_level=LogLevel.DEBUG,
    )


FAULTS = [
    ("RLRUN_PROT", "1", "unknown variable; did you mean RLRUN_PORT?"),
    ("RLRUN_SOMETHING", "1", "unknown variable; unset it; known: RLRUN_CONFIG, "),
    ("RLRUN_PORT", "70000", "got 70000; must be a port number"),
    ("RLRUN_PORT", "tcp://10.0.0.1:80", "Kubernetes made it for a Service; set enableServiceLinks: false in the pod"),
    ("RLRUN_GATEWAY_SERVICE_HOST", "10.0.0.1", "Kubernetes made it for a Service"),
    ("RLRUN_GATEWAY_PORT_80_TCP_ADDR", "10.0.0.1", "Kubernetes made it for a Service"),
    ("RLRUN_ROUTER", "host", "got host; each entry must be host:port, 'host' is not"),
    ("RLRUN_ROUTER", "a:1,b:x", "'b:x' is not; separate several by commas"),
    ("RLRUN_BIND", "http://h", "got http://h; must be a host name or an address"),
    ("RLRUN_LOG_FORMAT", "xml", "got xml; must be text or json"),
    ("RLRUN_LOG_LEVEL", "loud", "got loud; must be one of DEBUG, INFO, WARNING, ERROR"),
    ("RLRUN_REDIS_URL", "h:6379", "got (hidden); must begin with redis://"),
]


@pytest.mark.parametrize(("variable", "text", "message"), FAULTS, ids=[f"{variable}={text}" for variable, text, _ in FAULTS])
def test_a_wrong_variable_is_explained(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProcessEnv.read({variable: text})
    assert caught.value.message.startswith(f"{variable}: ")
    assert message in caught.value.message


def test_all_wrong_variables_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ProcessEnv.read({"RLRUN_PORT": "x", "RLRUN_LOG_LEVEL": "x"})
    assert len(caught.value.message.splitlines()) == 2
