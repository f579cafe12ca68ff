"""The vectorised sampler against a direct implementation, one row at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from rlrun_worker.engine import Ids, Sampling
from rlrun_worker.torch_engine.sampler import RowSampler

NUM_VOCAB = 600


def reference_probabilities(logits: list[float], prompt: list[int], output: list[int], sampling: Sampling) -> list[float]:
    """Probability of each token under penalties, temperature, top_k and top_p, written out plainly."""
    values = list(logits)
    for token in range(len(values)):
        if token in prompt or token in output:
            values[token] = (
                values[token] / sampling.repetition_penalty if values[token] > 0 else values[token] * sampling.repetition_penalty
            )
        count = output.count(token)
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    if sampling.temperature == 0:
        best = max(range(len(values)), key=values.__getitem__)
        return [float(token == best) for token in range(len(values))]
    exponents = [math.exp((value - max(values)) / sampling.temperature) for value in values]
    order = sorted(range(len(values)), key=lambda token: -exponents[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, kept, mass = sum(exponents[token] for token in order), [], 0.0
    for token in order:
        if mass >= sampling.top_p * total:
            break
        kept.append(token)
        mass += exponents[token]
    return [exponents[token] / mass if token in kept else 0.0 for token in range(len(values))]


def draw_many(logits: torch.Tensor, prompt: list[int], output: list[int], sampling: Sampling, num_draws: int) -> tuple[Ids, np.ndarray]:
    """`num_draws` rows in the same state, drawn in one batch between rows of other settings."""
    others = [Sampling(temperature=0.0), Sampling(), Sampling(top_k=2), Sampling(presence_penalty=2.0)]
    sampler = RowSampler(num_draws + len(others), 16, NUM_VOCAB, torch.device("cpu"))
    prompt_ids = np.array(prompt, np.int32)
    for slot, other in enumerate(others):
        sampler.admit(slot, other, prompt_ids, 16)
    rows = np.arange(num_draws + len(others))
    for slot in range(len(others), rows.size):
        sampler.admit(slot, sampling, prompt_ids, 16)
    end = len(prompt)
    for token in output:
        # Forces the output so far: a distribution with one possible token.
        forced = torch.full((rows.size, NUM_VOCAB), -1e9)
        forced[:, token] = 1e9
        sampler.draw(rows, np.full(rows.size, end), forced)
        end += 1
    # Stratified uniforms: frequencies come out as the probabilities, up to one draw per token.
    sampler._uniforms[len(others) :, end] = (np.arange(num_draws) + 0.5) / num_draws
    ids, logprobs, _ = sampler.draw(rows, np.full(rows.size, end), logits.expand(rows.size, -1).contiguous())
    return ids[len(others) :], logprobs[len(others) :]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(top_k=5),
        Sampling(top_p=0.5),
        Sampling(top_p=0.9999, temperature=5.0),
        Sampling(top_k=300, top_p=0.3, temperature=2.0),
        Sampling(top_k=1),
        Sampling(top_k=100000, top_p=0.7),
        Sampling(presence_penalty=1.5),
        Sampling(frequency_penalty=0.8),
        Sampling(frequency_penalty=-2.0, presence_penalty=-1.0),
        Sampling(repetition_penalty=1.7),
        Sampling(repetition_penalty=0.5, top_p=0.8, temperature=0.9),
        Sampling(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.5, top_k=20, top_p=0.8),
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, frequency_penalty=2.0, repetition_penalty=3.0),
    ],
    ids=repr,
)
def test_draws_follow_the_reference_distribution(sampling: Sampling) -> None:
    logits = torch.randn(NUM_VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    best = logits.argsort(descending=True).tolist()
    prompt, output = [best[1], best[7], best[-1]], [best[0], best[0], best[3]]
    num_draws = 1000
    ids, logprobs = draw_many(logits, prompt, output, sampling, num_draws)
    expected = np.array(reference_probabilities(logits.tolist(), prompt, output, sampling))
    observed = np.bincount(ids, minlength=NUM_VOCAB) / num_draws
    np.testing.assert_allclose(observed, expected, atol=2 / num_draws)
    assert not observed[expected == 0].any()
    # The logprob handed out is the policy's, without penalties and truncation.
    plain = torch.log_softmax(logits / (sampling.temperature or 1.0), -1)[torch.from_numpy(ids).long()]
    np.testing.assert_allclose(logprobs, plain, atol=1e-5)


def test_a_reused_slot_forgets_the_counts_of_the_last_request() -> None:
    sampler = RowSampler(1, 16, NUM_VOCAB, torch.device("cpu"))
    logits = torch.zeros(1, NUM_VOCAB)
    logits[0, 5], logits[0, 6] = 1.0, 0.5
    rows, sampling = np.array([0]), Sampling(temperature=0.0, presence_penalty=1.0)
    for _ in range(2):
        sampler.admit(0, sampling, np.array([1], np.int32), 16)
        drawn = [int(sampler.draw(rows, np.array([end]), logits)[0][0]) for end in (1, 2)]
        assert drawn == [5, 6]
        sampler.release(0)
