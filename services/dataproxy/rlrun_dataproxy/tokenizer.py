"""A model's tokenizer and chat template from its directory, without transformers."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from rlrun.errors import ConfigError, InvalidRequest
from rlrun_dataproxy import byte_level
from rlrun_dataproxy.fast_bpe import FastBpe, Unconvertible, convert

log = logging.getLogger(__name__)

CHAT_TEMPLATE_FILE = "chat_template.jinja"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class TemplateRefusal(InvalidRequest):
    """The model's chat template does not take these messages."""


class ChatTokenizer:
    """Text <-> ids, messages -> text.

    `eos_ids`: every id that ends an output. `vocabulary[i]` is the bytes that token i adds to a text.
    """

    def __init__(self, fast: FastTokenizer, template: str, *, special_tokens: Mapping[str, str], eos_ids: Sequence[int]) -> None:
        self._fast = fast
        try:
            self._template = _environment().from_string(template)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"The chat template has an error in line {error.lineno}: {error.message}", param="model") from error
        self._constants = {**self._template.globals, **special_tokens}
        self.eos_ids = tuple(eos_ids)
        described = msgspec.json.decode(fast.to_str())
        self.vocabulary = _vocabulary(fast, described)
        self._fast_bpe = _fast_bpe(fast, described, self.vocabulary)

    @staticmethod
    def load(directory: str | Path) -> ChatTokenizer:
        """Reads tokenizer.json, tokenizer_config.json, generation_config.json and the chat template.

        Raises:
            ConfigError: a file is missing or says nothing usable; names it.
        """
        root = Path(directory)
        tokenizer_file = root / "tokenizer.json"
        if not tokenizer_file.is_file():
            raise ConfigError(f"{tokenizer_file} does not exist; the model directory must hold a fast tokenizer", param="model")
        config = _read_json(root / "tokenizer_config.json")
        fast = FastTokenizer.from_file(str(tokenizer_file))
        special = {name: _token_text(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
        eos_ids = _eos_ids(root, fast, special)
        if not eos_ids:
            raise ConfigError(f"{root}: no end-of-sequence token in tokenizer_config.json or generation_config.json", param="model")
        return ChatTokenizer(fast, _read_template(root, config), special_tokens=special, eos_ids=eos_ids)

    def encode(self, text: str) -> list[int]:
        return array("i", self.encode_packed(text)).tolist()

    def encode_packed(self, text: str) -> bytes:
        """int32 ids. Other threads run meanwhile."""
        if self._fast_bpe is not None and (packed := self._fast_bpe.encode(text)) is not None:
            return packed
        # The batch call gives up the interpreter's lock, and the fast one does not count characters.
        return array("i", self._fast.encode_batch_fast([text], add_special_tokens=False)[0].ids).tobytes()

    def decode(self, ids: Sequence[int]) -> str:
        """All tokens as text, special ones included."""
        vocabulary = self.vocabulary
        return b"".join(vocabulary[i] if 0 <= i < len(vocabulary) else b"" for i in ids).decode("utf-8", errors="replace")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any],
    ) -> str:
        """The conversation as the model's text.

        Raises:
            TemplateRefusal: the template raised, for example because roles do not alternate as it demands.
        """
        try:
            context = self._template.new_context(
                {
                    **self._constants,
                    **template_kwargs,
                    "messages": messages,
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                },
                shared=True,  # globals are among the constants; `render` would copy them, entry by entry, for each text
            )
            return "".join(self._template.root_render_func(context))
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise TemplateRefusal(f"The model's chat template does not take these messages: {error}", param="messages") from error


class _Generation(Extension):
    """`{% generation %}` marks assistant text for other programs; here its body is plain template."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Sandbox(ImmutableSandboxedEnvironment):
    """The same answers as its base at half the cost: templates ask for a few attributes over and over."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._safe: dict[tuple[type, str], bool] = {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        # A message's key: the base looks for an attribute first, which raises.
        if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # What the base looks at is the object's type and the name.
        key = (type(obj), attr)
        if (safe := self._safe.get(key)) is None:
            safe = self._safe[key] = super().is_safe_attribute(obj, attr, value)
        return safe


def _environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # The filter of jinja2 escapes <, > and & for HTML, which the models never saw in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}", param="model") from error
    return value if isinstance(value, dict) else {}


def _read_template(root: Path, config: Mapping[str, Any]) -> str:
    file = root / CHAT_TEMPLATE_FILE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {one.get("name"): one.get("template") for one in template}
        template = named.get("tool_use") or named.get("default")
    if not isinstance(template, str):
        raise ConfigError(f"{root}: no {CHAT_TEMPLATE_FILE} and no chat_template in tokenizer_config.json", param="model")
    return template


def _token_text(value: Any) -> str:
    return value["content"] if isinstance(value, dict) else str(value)


def _eos_ids(root: Path, fast: FastTokenizer, special: Mapping[str, str]) -> list[int]:
    """The tokenizer's own one first, then those that generation_config.json and config.json name."""
    found: list[int] = []
    if (own := fast.token_to_id(special.get("eos_token", ""))) is not None:
        found.append(own)
    for name in ("generation_config.json", "config.json"):
        value = _read_json(root / name).get("eos_token_id")
        found.extend(one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))
    return list(dict.fromkeys(found))


def _fast_bpe(fast: FastTokenizer, described: Mapping[str, Any], vocabulary: Sequence[bytes]) -> FastBpe | None:
    try:
        return convert(fast, described, vocabulary)
    except Unconvertible as error:
        log.info("prompts are tokenised by `tokenizers`, a few times slower than by tiktoken, which cannot stand in: %s", error)
        return None


def _vocabulary(fast: FastTokenizer, described: Mapping[str, Any]) -> list[bytes]:
    """Bytes of each token, so that text can be put together from any cut of the ids.

    Byte-level BPE maps bytes to printable characters (GPT-2's table); SentencePiece models write a space as U+2581 and
    bytes as <0x0A>. Added tokens are plain text in both.
    """
    size = fast.get_vocab_size(with_added_tokens=True)
    vocab: dict[str, int] = fast.get_vocab(with_added_tokens=True)
    added = {index: token.content for index, token in fast.get_added_tokens_decoder().items()}
    to_bytes = byte_level.token_bytes if _names(described.get("decoder") or {}, "ByteLevel") else _sentence_piece
    table = [b""] * (max(vocab.values(), default=size - 1) + 1)
    for text, index in vocab.items():
        table[index] = added[index].encode() if index in added else to_bytes(text)
    return table


def _names(described: Mapping[str, Any], kind: str) -> bool:
    return described.get("type") == kind or any(_names(one, kind) for one in described.get("decoders", ()))


def _sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()
