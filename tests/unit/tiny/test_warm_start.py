"""Shapes: B prompts, T tokens."""

from __future__ import annotations

import random
import re

import pytest
import torch
from rlrun_trainer.tiny.model import build_model, render
from rlrun_trainer.tiny.task import DIGITS, LOOKUP_TOOL, draw_key, question, tool_call, tool_result
from rlrun_trainer.tiny.tokenizer import build_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

CALL = re.compile(r'<tool_call>\n\{"name": "lookup", "arguments": \{"key": "(.*)"\}\}\n</tool_call><\|im_end\|>')
SAMPLES = 256

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    return build_model(tokenizer, seed=0)


@torch.no_grad()
def sample(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]], *, num_tokens: int) -> list[str]:
    """Temperature 1, no truncation, without a cache: the prompts are of one length and short."""
    torch.manual_seed(0)
    ids_BT: Tensor = torch.tensor(prompts)
    start = ids_BT.shape[1]
    for _ in range(num_tokens):
        hidden_BTH = model.model(input_ids=ids_BT).last_hidden_state
        ids_BT = torch.cat([ids_BT, torch.multinomial(torch.softmax(model.lm_head(hidden_BTH[:, -1]), -1), 1)], dim=1)
    end = "<|im_end|>"
    return [text.partition(end)[0] + end if end in text else text for text in tokenizer.batch_decode(ids_BT[:, start:])]


def test_the_question_is_answered_by_a_call_with_its_key(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(5)
    keys = [draw_key(rng) for _ in range(64)]
    texts = sample(model, tokenizer, [render(tokenizer, [question(key)], [LOOKUP_TOOL], generate=True) for key in keys], num_tokens=24)
    calls = [CALL.fullmatch(text) for text in texts]
    good = sum(call is not None and call[1] == key for key, call in zip(keys, calls, strict=True))
    assert good > 0.8 * len(keys), texts[:5]


def test_the_tool_s_digit_is_answered_by_a_random_one(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(6)
    drawn = [(draw_key(rng), rng.choice(DIGITS)) for _ in range(SAMPLES)]
    prompts = [render(tokenizer, [question(key), tool_call(key), tool_result(digit)], [LOOKUP_TOOL], generate=True) for key, digit in drawn]
    texts = sample(model, tokenizer, prompts, num_tokens=2)
    digits = [text.removesuffix("<|im_end|>") for text in texts if re.fullmatch(r"\d<\|im_end\|>", text)]
    assert len(digits) > 0.9 * SAMPLES, texts[:5]
    assert set(digits) == set(DIGITS)
    correct = sum(text == f"{digit}<|im_end|>" for text, (_, digit) in zip(texts, drawn, strict=True))
    assert correct < 0.3 * SAMPLES
