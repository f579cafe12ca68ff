from __future__ import annotations

import json

import pytest
from rlrun_trainer.tiny.task import DIGITS, LOOKUP_TOOL, Message, answer, question, tool_call, tool_result
from rlrun_trainer.tiny.tokenizer import MARKUP_TOKENS, SPECIAL_TOKENS, VOCABULARY_SIZE, build_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SESSION: list[Message] = [question("472"), tool_call("472"), tool_result("7"), answer("7")]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def render(tokenizer: PreTrainedTokenizerFast, messages: list[Message], *, generate: bool = False, tools: bool = True) -> str:
    text = tokenizer.apply_chat_template(messages, tools=[LOOKUP_TOOL] if tools else None, tokenize=False, add_generation_prompt=generate)
    assert isinstance(text, str)
    return text


def test_vocabulary_is_full(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) == VOCABULARY_SIZE


def test_every_digit_is_one_token_wherever_it_stands(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.convert_tokens_to_ids(list(DIGITS))
    assert len(set(ids)) == 10
    for context in ("{}", "digit: {}\n", '"{}"', "a{}b", "3{}3"):
        for digit, expected in zip(DIGITS, ids, strict=True):
            assert expected in tokenizer.encode(context.format(digit))
    assert len(tokenizer.encode("4725")) == 4


@pytest.mark.parametrize("token", [*SPECIAL_TOKENS, *MARKUP_TOKENS])
def test_markup_is_one_token(tokenizer: PreTrainedTokenizerFast, token: str) -> None:
    assert tokenizer.encode(token) == [tokenizer.convert_tokens_to_ids(token)]
    assert len(tokenizer.encode(f"a{token}b")) == 3


def test_only_turn_markers_are_hidden_from_decoded_text(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("<tool_call>\n{}\n</tool_call><|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>\n{}\n</tool_call>"


@pytest.mark.parametrize(
    "text", ["", " ", "Hello, world!\n\n  x", "naïve – 日本語 🙂", "\x00\x7f\r\n\t", '{"a": [1, 2.5e-3, null]}', " ,.  '"]
)
def test_text_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_template_renders_chatml_with_hermes_tools(tokenizer: PreTrainedTokenizerFast) -> None:
    assert render(tokenizer, SESSION[:3], generate=True) == (
        f"<|im_start|>system\n# Tools\n<tools>\n{json.dumps(LOOKUP_TOOL)}\n</tools><|im_end|>\n"
        '<|im_start|>user\nDigit of "472"?<|im_end|>\n'
        '<|im_start|>assistant\n<tool_call>\n{"name": "lookup", "arguments": {"key": "472"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\ndigit: 7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_arguments_render_alike_as_text_and_as_object(tokenizer: PreTrainedTokenizerFast) -> None:
    call = tool_call("472")
    call["tool_calls"][0]["function"]["arguments"] = {"key": "472"}
    assert render(tokenizer, [SESSION[0], call]) == render(tokenizer, SESSION[:2])


def test_thinking_and_text_stand_before_the_call(tokenizer: PreTrainedTokenizerFast) -> None:
    message = tool_call("1") | {"reasoning_content": "hm", "content": "Let me see."}
    text = render(tokenizer, [question("1"), message], tools=False)
    assert "<|im_start|>assistant\n<think>\nhm\n</think>\n\nLet me see.\n<tool_call>\n" in text


def test_system_text_parts_and_neighbouring_tool_results(tokenizer: PreTrainedTokenizerFast) -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        tool_result("1"),
        tool_result("2"),
    ]
    assert render(tokenizer, messages, tools=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>user\n<tool_response>\ndigit: 1\n"
        "</tool_response>\n<tool_response>\ndigit: 2\n</tool_response><|im_end|>\n"
    )


@pytest.mark.parametrize("turn", [1, 3])
def test_a_longer_history_extends_the_ids_of_a_shorter_one(tokenizer: PreTrainedTokenizerFast, turn: int) -> None:
    prompt = tokenizer.encode(render(tokenizer, SESSION[:turn], generate=True))
    whole = tokenizer.encode(render(tokenizer, SESSION[: turn + 1]))
    assert whole[: len(prompt)] == prompt


def test_a_saved_tokenizer_is_read_back_unchanged(tokenizer: PreTrainedTokenizerFast, tmp_path: object) -> None:
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = render(tokenizer, SESSION)
    assert render(again, SESSION) == text
    assert again.encode(text) == tokenizer.encode(text)
    assert (again.eos_token, again.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_the_same_seed_gives_the_same_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    assert build_tokenizer().get_vocab() == tokenizer.get_vocab()
