"""Text and a tokenizer for the benchmark: prose from the standard library's docstrings, byte-level BPE, ChatML.

Everything is made once and kept in the cache directory.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

CACHE_DIR = Path(__file__).resolve().parents[1] / ".cache"
VOCABULARY_SIZE = 16_384
NUM_TRAINING_BYTES = 4_000_000
END_TOKEN = "<|im_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Safe inside a JSON string as they are, so that requests are put together without an encoder.
_UNSAFE = re.compile(r"[^ !#-\[\]-~]+|\s+")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A fixed output: `ids` end with the end token, `text` is what they decode to without it."""

    ids: list[int]
    tokens: list[str]
    text: str


@dataclass(frozen=True, kw_only=True)
class Material:
    """What the cases need. `prose` is ASCII without quotes, backslashes and line ends."""

    model_dir: Path
    prose: bytes
    replies: dict[int, Reply]

    def piece(self, num_bytes: int, rng: random.Random) -> bytes:
        """A text that differs from call to call."""
        mark = b"%x " % rng.getrandbits(64)
        start = rng.randrange(len(self.prose) - num_bytes)
        return mark + self.prose[start : start + num_bytes - len(mark)]


def prepare(reply_lengths: tuple[int, ...] = (64, 256)) -> Material:
    """Reads the cache or fills it (about ten seconds)."""
    model_dir = CACHE_DIR / f"model-{VOCABULARY_SIZE}"
    prose_file = CACHE_DIR / "prose.txt"
    if not (model_dir / "config.json").is_file() or not prose_file.is_file():
        CACHE_DIR.mkdir(parents=True, exist_ok=True)
        prose = _prose()
        prose_file.write_text(prose)
        _make_model(prose[:NUM_TRAINING_BYTES], model_dir)
    prose = prose_file.read_text()
    return Material(model_dir=model_dir, prose=prose.encode(), replies={n: _reply(model_dir, prose, n) for n in reply_lengths})


def _prose() -> str:
    """Docstrings of the standard library in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    pieces: list[str] = []
    for file in sorted(root.rglob("*.py")):
        if "site-packages" in file.parts or "test" in file.parts:
            continue
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
                pieces.append(_UNSAFE.sub(" ", text))
    random.Random(0).shuffle(pieces)
    return " ".join(pieces)


def _make_model(prose: str, model_dir: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=["<|endoftext|>", "<|im_start|>", END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = [prose[start : start + 2000] for start in range(0, len(prose), 2000)]
    tokenizer.train_from_iterator(lines, trainer)
    model_dir.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    (model_dir / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (model_dir / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_TOKEN, "pad_token": "<|endoftext|>"}))
    (model_dir / "config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id(END_TOKEN)}))


def _reply(model_dir: Path, prose: str, num_tokens: int) -> Reply:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(prose[1000 : 1000 + 16 * num_tokens]).ids[: num_tokens - 1]
    end = tokenizer.token_to_id(END_TOKEN)
    tokens = [tokenizer.decode([token]) for token in ids]
    return Reply(ids=[*ids, end], tokens=[*tokens, END_TOKEN], text=tokenizer.decode(ids))
