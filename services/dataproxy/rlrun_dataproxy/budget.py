"""How many tokens a call may sample."""

from __future__ import annotations

from rlrun.errors import ContextLengthExceeded, InvalidRequest

DEFAULT_MAX_NEW_TOKENS = 512


def max_new_tokens(num_prompt_tokens: int, *, max_new: int | None, max_total: int | None, engine_max_total: int | None) -> int:
    """The smallest of what the request and the engine allow; `DEFAULT_MAX_NEW_TOKENS` where the request says nothing.

    Raises:
        ContextLengthExceeded: the prompt leaves no room for one token.
        InvalidRequest: a bound of the request is 0.
    """
    for name, value in (("max_new_tokens", max_new), ("max_total_tokens", max_total)):
        if value is not None and value <= 0:
            raise InvalidRequest(f"{name} is {value}; must be at least 1", param=name)
    bounds = [bound for bound in (max_total, engine_max_total) if bound is not None]
    if bounds and num_prompt_tokens >= min(bounds):
        raise ContextLengthExceeded(
            f"len of prompt tokens {num_prompt_tokens} exceeds max_total_tokens {min(bounds)} with the answer's first token; "
            "shorten the conversation",
            param="messages",
        )
    room = [bound - num_prompt_tokens for bound in bounds]
    if max_new is not None:
        room.append(max_new)
    elif max_total is None:
        room.append(DEFAULT_MAX_NEW_TOKENS)
    return min(room)
