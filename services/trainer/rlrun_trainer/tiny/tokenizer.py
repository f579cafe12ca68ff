"""The small model's tokenizer: byte-level BPE with one token per digit, ChatML, and tools in the Hermes style that Qwen uses."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlrun_trainer.tiny.corpus import corpus

VOCABULARY_SIZE = 2048
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# A finished turn renders to the same text whatever follows (thinking is kept): the ids of a longer history extend those of a shorter one.
CHAT_TEMPLATE = r"""
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}
{%- for part in content -%}
{%- if part is string -%}{{- part -}}{%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set has_system = messages and messages[0].role in ('system', 'developer') -%}
{%- if tools or has_system -%}
{{- '<|im_start|>system\n' -}}
{%- if has_system -%}{{- text(messages[0].content) -}}{%- endif -%}
{%- if tools -%}
{%- if has_system -%}{{- '\n\n' -}}{%- endif -%}
{{- '# Tools\n<tools>' -}}
{%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}
{{- '\n</tools>' -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role in ('system', 'developer') -%}
{%- if not loop.first -%}{{- '<|im_start|>system\n' -}}{{- text(message.content) -}}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- elif message.role == 'user' -%}
{{- '<|im_start|>user\n' -}}{{- text(message.content) -}}{{- '<|im_end|>\n' -}}
{%- elif message.role == 'assistant' -%}
{{- '<|im_start|>assistant\n' -}}
{%- if message.reasoning_content -%}{{- '<think>\n' -}}{{- message.reasoning_content -}}{{- '\n</think>\n\n' -}}{%- endif -%}
{{- text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function else call -%}
{%- if not loop.first or message.content -%}{{- '\n' -}}{%- endif -%}
{{- '<tool_call>\n{"name": ' -}}{{- function.name | tojson -}}{{- ', "arguments": ' -}}
{%- if function.arguments is string -%}{{- function.arguments -}}{%- else -%}{{- function.arguments | tojson -}}{%- endif -%}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- elif message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\n<tool_response>\n' -}}{{- text(message.content) -}}{{- '\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
""".replace("\n", "")


def build_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Trains the tokenizer on made text (about a second) and gives it the chat template."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(MARKUP_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus(seed), trainer)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
