"""Sessions as agents leave them, and the document of a run that trains on them."""

from __future__ import annotations

import numpy as np

from rlrun import spec
from rlrun.proto import common_pb2, session_pb2
from rlrun.store import Admission, AdmissionMode, Store

VOCAB = 23
BATCH = 4


def document(*, total_steps: int, checkpoint_every: int = 1) -> spec.RLRun:
    return spec.parse(
        {
            "apiVersion": "rlrun.dev/v1alpha1",
            "kind": "RLRun",
            "metadata": {"name": "loop"},
            "spec": {
                "model": {"uri": "file:///unused", "maxTotalTokens": 64},
                "trainer": {
                    "algorithm": {"name": "ppo"},
                    "batchSize": BATCH,
                    "totalSteps": total_steps,
                    "checkpoint": {"everySteps": checkpoint_every},
                    "packing": {"maxTokensPerRow": 64, "maxTokensPerMicrobatch": 256},
                    "device": "Cpu",
                },
            },
        }
    )


async def finish_sessions(store: Store, names: list[str], *, logprob: float = -3.0, group_size: int = 1) -> None:
    """Sessions with one interaction each and alternating rewards, handed to the trainer."""
    random = np.random.default_rng(0)
    for number, name in enumerate(names):
        placed = await store.sessions.place(
            session_id=name,
            task_id="t",
            group_id=names[number - number % group_size],
            group_size=group_size,
            key_hash=name,
            owner_id="proxy",
            admission=Admission(mode=AdmissionMode.UNLIMITED, max_concurrent=100),
        )
        output = random.integers(1, VOCAB, 3).astype("<i4")
        record = session_pb2.InteractionRecord(
            schema=1,
            id=f"{name}-i",
            new_prompt_ids=np.array([1, 2, 3], "<i4").tobytes(),
            output_ids=output.tobytes(),
            output_logprobs=np.full(3, logprob, "<f4").tobytes(),
            versions=[common_pb2.VersionSpan(num_tokens=3, version=0)],
            temperature=1.0,
        )
        await store.sessions.record(name, placed.fence, record)
        await store.sessions.set_reward(name, placed.fence, f"{name}-i", float(number % 2), queue=True)
        await store.sessions.finish(name, queue=True, default_reward=None)


async def states(store: Store, names: list[str]) -> list[str]:
    return [str(info.state) for name in names if (info := await store.sessions.get(name)) is not None]
