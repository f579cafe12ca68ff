"""The small model's policy: a Qwen3 of about 0.7 M parameters that knows the form of the digits task and nothing of its answers.

Shapes: B conversations, T tokens, N trained positions, V vocabulary.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rlrun_trainer.tiny.task import DIGITS, LOOKUP_TOOL, Message, answer, draw_key, question, tool_call, tool_result

STEPS = 220
BATCH_SIZE = 16
# The form is the same without the tools' text, and the sequence half as long.
TOOLS_SHARE = 0.25
INITIALIZER_RANGE = 0.05
# A digit that is only lightly held to chance is quickly learnt later.
ANSWER_WEIGHT = 0.3
LEARNING_RATE = 4e-3


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0, *, steps: int | None = None) -> Qwen3ForCausalLM:
    """A policy with random weights after a short warm start; the same weights for the same seed and number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Qwen3ForCausalLM(_config(tokenizer))
            _initialize(model)
            _warm_start(model, tokenizer, random.Random(seed), STEPS if steps is None else steps)
    finally:
        torch.set_num_threads(threads)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    return model


def _config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        initializer_range=INITIALIZER_RANGE,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def _initialize(model: Qwen3ForCausalLM) -> None:
    """Random weights from which a model this small learns in tens of steps, at learning rates around 1e-3.

    Heads write what they read (output = transposed value projection; Trockman and Kolter 2023, Mimetic Initialization of Self-Attention
    Layers): copying then needs only attention. Large embeddings under a small last norm let a step move the logits less.
    """
    model.model.embed_tokens.weight.data.mul_(2.0)
    model.model.norm.weight.data.fill_(0.5)
    for layer in model.model.layers:
        attention = layer.self_attn
        value = attention.v_proj.weight.data
        torch.nn.init.orthogonal_(value, gain=0.7)
        heads = value.view(-1, attention.head_dim, value.shape[1]).repeat_interleave(attention.num_key_value_groups, dim=0)
        attention.o_proj.weight.data.copy_(heads.reshape(-1, value.shape[1]).T)


def _warm_start(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, rng: random.Random, steps: int) -> None:
    """Teaches the form: the call with the asked key, then one digit. Every digit is an equally good label, so none is learned."""
    digits = torch.tensor(tokenizer.convert_tokens_to_ids(list(DIGITS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    model.train()
    for _ in range(steps):
        ids_BT, trained_BT, drawn_BT = _batch(tokenizer, rng)
        hidden_BTH = model.model(input_ids=ids_BT).last_hidden_state
        kept_BT = trained_BT[:, 1:]
        logprobs_NV = torch.log_softmax(model.lm_head(hidden_BTH[:, :-1][kept_BT]), dim=-1)
        exact_N = logprobs_NV.gather(-1, ids_BT[:, 1:][kept_BT][:, None])[:, 0]
        # The mean over all ten digits is the expectation over a random label, without the label's noise.
        loss = -torch.where(drawn_BT[:, 1:][kept_BT], ANSWER_WEIGHT * logprobs_NV[:, digits].mean(-1), exact_N).mean()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def _batch(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """ids_BT; which of them the assistant wrote; which of those are the drawn answers."""
    tools = [LOOKUP_TOOL] if rng.random() < TOOLS_SHARE else None
    rows = [_conversation(tokenizer, rng, tools) for _ in range(BATCH_SIZE)]
    width = max(len(ids) for ids, _, _ in rows)
    ids_BT = torch.full((BATCH_SIZE, width), tokenizer.pad_token_id)
    trained_BT = torch.zeros((BATCH_SIZE, width), dtype=torch.bool)
    drawn_BT = torch.zeros((BATCH_SIZE, width), dtype=torch.bool)
    for row, (ids, trained, drawn) in enumerate(rows):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        trained_BT[row, : len(ids)] = torch.tensor(trained)
        drawn_BT[row, drawn] = True
    return ids_BT, trained_BT, drawn_BT


def _conversation(tokenizer: PreTrainedTokenizerFast, rng: random.Random, tools: list[Message] | None) -> tuple[list[int], list[bool], int]:
    """Ids of a whole session as an agent sees it, which of them the assistant wrote, and where its answer is."""
    key = draw_key(rng)
    messages: list[Message] = [question(key), tool_call(key), tool_result(rng.choice(DIGITS)), answer(rng.choice(DIGITS))]
    ids: list[int] = []
    trained: list[bool] = []
    for turn in (1, 3):
        prompt = render(tokenizer, messages[:turn], tools, generate=True)
        whole = render(tokenizer, messages[: turn + 1], tools, generate=False)
        end = len(whole) - 1  # the line break after <|im_end|> belongs to the template, not to the answer
        ids += prompt[len(ids) :] + whole[len(prompt) : end]
        trained += [False] * (len(prompt) - len(trained)) + [True] * (end - len(prompt))
    return ids, trained, len(ids) - 2


def render(tokenizer: PreTrainedTokenizerFast, messages: list[Message], tools: list[Message] | None, *, generate: bool) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=generate)
    encoded: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return encoded
