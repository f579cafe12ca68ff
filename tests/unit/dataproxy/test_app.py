from __future__ import annotations

from rlrun_dataproxy.app import options_of

from rlrun.spec import RunSpec
from rlrun.trajectory import RewardStyle


def test_options_come_from_the_document() -> None:
    run = RunSpec.model_validate(
        {
            "model": {"uri": "file:///m", "maxTotalTokens": 2048, "reasoningParser": None},
            "dataproxy": {"maxCachedSessions": 7, "ephemeralTail": {"enabled": True, "pattern": "^<reminder>"}},
            "rollout": {"rewardPropagation": "Linear"},
            "trainer": None,
        }
    )
    options = options_of(run, member_id="dp")
    assert options.member_id == "dp"
    assert options.max_total_tokens == 2048
    assert options.max_cached_sessions == 7
    assert options.reward_style is RewardStyle.LINEAR
    assert options.ephemeral_tail is not None
    assert options.ephemeral_tail.search("<reminder>x")
    assert (options.parse_tool_calls, options.parse_reasoning) == (True, False)
    assert not options.queue_trajectories
    assert options.call_timeout_seconds == run.gateway.limits.request_timeout_seconds
