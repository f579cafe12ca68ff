"""Where state lives: Redis, the weight store, the local data directory."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from pydantic import Field

from rlrun.spec.base import Directory, Fault, SecretRef, SpecModel


class EmbeddedRedis(SpecModel):
    """A Redis that rlrun starts itself: `embedded: {}`. One machine, or one pod; its file lies in the data directory."""


class RedisSpec(SpecModel):
    """Exactly one of the three. RLRUN_REDIS_URL, where set, wins over all."""

    embedded: EmbeddedRedis | None = Field(default=None, description="Start a Redis beside the services.")
    secret_ref: SecretRef | None = Field(default=None, description="Secret that holds the URL (key `url`).")
    url: str | None = Field(
        default=None, max_length=1024, pattern=r"^(redis|rediss|unix)://[^\s]+$", description="URL without a password: redis://HOST:6379/0."
    )

    def rules(self) -> Iterator[Fault]:
        given = [
            name for name, value in (("embedded", self.embedded), ("secretRef", self.secret_ref), ("url", self.url)) if value is not None
        ]
        if len(given) != 1:
            yield Fault("", given, "must hold exactly one of embedded, secretRef, url; write `embedded: {}` for a Redis that rlrun starts")
        if self.url is not None and urlsplit(self.url).password is not None:
            yield Fault("url", "(hidden)", "must not hold a password; put the URL into a Secret (secretRef) or into RLRUN_REDIS_URL")


class WeightsSpec(SpecModel):
    """The store of published policy versions, read by every worker."""

    directory: Directory | None = Field(
        default=None, description="A directory that trainer and workers share; null: `weights` in the data directory."
    )


class LocalSpec(SpecModel):
    """What only `rlrun up` uses."""

    directory: Directory = Field(default=".rlrun", description="Data directory: Redis file, weights, checkpoints, logs, keys.")
