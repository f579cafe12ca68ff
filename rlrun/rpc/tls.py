"""How services prove who they are: a shared token, mutual TLS, or loopback."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Security:
    """`tls_dir` holds `tls.crt`, `tls.key`, `ca.crt`, as cert-manager writes them."""

    token: str | None = None
    tls_dir: Path | None = None

    def server_credentials(self) -> grpc.ServerCredentials | None:
        if self.tls_dir is None:
            return None
        key, certificate, authority = self._read()
        return grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        if self.tls_dir is None:
            return None
        key, certificate, authority = self._read()
        return grpc.ssl_channel_credentials(root_certificates=authority, private_key=key, certificate_chain=certificate)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        assert self.tls_dir is not None
        return tuple((self.tls_dir / name).read_bytes() for name in ("tls.key", "tls.crt", "ca.crt"))  # type: ignore[return-value]
