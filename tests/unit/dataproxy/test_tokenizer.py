from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rlrun_dataproxy.tokenizer import ChatTokenizer
from tokenizers import Tokenizer, decoders, models

from rlrun.errors import ConfigError

MESSAGES = [{"role": "user", "content": "<b>&é"}]


def render(tokenizer: ChatTokenizer, **kwargs: Any) -> str:
    return tokenizer.render(MESSAGES, tools=None, add_generation_prompt=True, template_kwargs=kwargs)


def test_bytes_of_tokens_are_what_the_library_decodes_to(tokenizer: ChatTokenizer, model_directory: Path) -> None:
    fast = Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    text = "<|im_start|>user\n Grüße 😀 東京 <tool_call>{}</tool_call><|im_end|>\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == fast.decode(ids, skip_special_tokens=False) == text


def test_end_tokens_are_the_tokenizers_own_and_those_of_the_generation_config(tokenizer: ChatTokenizer) -> None:
    assert [tokenizer.decode([token]) for token in tokenizer.eos_ids] == ["<|im_end|>", "<|endoftext|>"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].content }}", "<b>&é"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "<b>&é"}'),
        ("{{ eos_token }}{{ pad_token }}", "<|im_end|><|endoftext|>"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{{ enable_thinking }}", "False"),
        ("{% if tools is none %}no tools{% endif %}", "no tools"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ messages[0].nothing is defined }} {{ messages[0].nothing }}", "False "),
        ("{{ messages[0].get('role') }} {{ messages[0].items() | list | length }}", "user 2"),
        ("{% for m in messages * 2 %}{{ m.role }}{{ m.content.strip('<') }}{% endfor %}", "userb>&éuserb>&é"),
    ],
)
def test_templates_see_what_they_expect(write_model: Any, tmp_path: Path, template: str, expected: str) -> None:
    assert render(ChatTokenizer.load(write_model(tmp_path, template=template)), enable_thinking=False) == expected


def test_a_method_is_preferred_to_a_key_of_its_name(write_model: Any, tmp_path: Path) -> None:
    tokenizer = ChatTokenizer.load(write_model(tmp_path, template="{{ messages[0].items is callable }}"))
    assert tokenizer.render([{"items": "x"}], tools=None, add_generation_prompt=True, template_kwargs={}) == "True"


def test_a_template_may_stand_in_the_tokenizer_config(write_model: Any, tmp_path: Path) -> None:
    write_model(tmp_path, template="unused")
    (tmp_path / "chat_template.jinja").unlink()
    config = tmp_path / "tokenizer_config.json"
    for template in ("plain", [{"name": "default", "template": "plain"}, {"name": "rag", "template": "x"}]):
        config.write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": template}))
        assert render(ChatTokenizer.load(tmp_path)) == "plain"


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        (["tokenizer.json"], "tokenizer.json does not exist"),
        (["tokenizer_config.json", "generation_config.json"], "no end-of-sequence token"),
        (["chat_template.jinja"], "no chat_template.jinja"),
    ],
)
def test_a_missing_file_is_named(write_model: Any, tmp_path: Path, remove: list[str], message: str) -> None:
    write_model(tmp_path)
    for name in remove:
        (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=message):
        ChatTokenizer.load(tmp_path)


def test_a_broken_template_is_named(write_model: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        ChatTokenizer.load(write_model(tmp_path, template="{% if %}"))


def test_sentence_piece_tokens_are_bytes_too() -> None:
    fast = Tokenizer(models.BPE(vocab={"▁a": 0, "<0xC3>": 1, "<0xA9>": 2, "b": 3}, merges=[]))
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = ChatTokenizer(fast, "x", special_tokens={}, eos_ids=[3])
    assert tokenizer.decode([0, 1, 2, 3]) == " aéb"
