"""A small byte-level BPE model with ChatML, tools and reasoning, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rlrun_dataproxy.prompt import PromptBuilder
from rlrun_dataproxy.tokenizer import ChatTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CORPUS = [
    "What is the weather in Oslo? It rains in Oslo and the sun shines in Rome.",
    'You may call functions. {"name": "weather", "arguments": {"city": "Oslo"}}',
    "system user assistant tool question answer think the and of to a in is it",
    "Grüße aus Zürich, naïve café, 東京 😀",
]

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last_query = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content and loop.index0 > ns.last_query %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""


def _write_model(directory: Path, *, template: str = TEMPLATE) -> Path:
    """tokenizer.json, tokenizer_config.json, generation_config.json and a chat template, as a model directory has them."""
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    fast.train_from_iterator(CORPUS, trainer)
    fast.add_special_tokens([AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    fast.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    directory.mkdir(parents=True, exist_ok=True)
    fast.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}}))
    ends = [fast.token_to_id("<|im_end|>"), fast.token_to_id("<|endoftext|>")]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (directory / "chat_template.jinja").write_text(template)
    return directory


@pytest.fixture(scope="session")
def write_model() -> Callable[..., Path]:
    return _write_model


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tokenizer(model_directory: Path) -> ChatTokenizer:
    return ChatTokenizer.load(model_directory)


@pytest.fixture(scope="session")
def prompts(tokenizer: ChatTokenizer) -> PromptBuilder:
    return PromptBuilder(tokenizer)
