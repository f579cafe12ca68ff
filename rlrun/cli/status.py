"""`rlrun status`: what a running gateway says about its run."""

from __future__ import annotations

from rlrun.cli import gateway
from rlrun.cli.outcome import JsonOption, console, print_json
from rlrun.cli.render import value_tree


def status(
    url: gateway.UrlOption = gateway.DEFAULT_URL,
    admin_key_file: gateway.AdminKeyOption = None,
    timeout: gateway.TimeoutOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Shows the policy version, the training step, the numbers of sessions and the members."""
    answer = gateway.call("GET", url, "/admin/status", key=gateway.admin_key(admin_key_file), timeout_seconds=timeout)
    if as_json:
        print_json(answer)
    else:
        console().print(value_tree(answer, "status"))
