"""`rlrun weights`: the present policy version and where its weights lie; `rlrun status` shows which worker serves which."""

from __future__ import annotations

from rlrun.cli import gateway
from rlrun.cli.outcome import JsonOption, console, print_json
from rlrun.cli.render import value_tree


def weights(
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    admin_key_file: gateway.AdminKeyOption = None,
    timeout: gateway.TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Shows the present policy: version, path, fingerprint."""
    answer = gateway.call("GET", url, "/admin/weights", key=gateway.admin_key(admin_key_file), timeout_seconds=timeout)
    if as_json:
        print_json(answer)
    else:
        console().print(value_tree(answer, "weights"))
