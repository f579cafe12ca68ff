from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rlrun_trainer.tiny import make, make_tiny_model


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of warm start: these tests are about the directory."""
    from rlrun_trainer.tiny import model

    monkeypatch.setattr(model, "STEPS", 2)
    monkeypatch.setattr(model, "BATCH_SIZE", 2)


@pytest.mark.usefixtures("quick")
def test_a_directory_holds_what_from_pretrained_reads(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = make_tiny_model(tmp_path / "models" / "digits")
    assert {path.name for path in target.iterdir()} >= {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    assert [path.name for path in target.parent.iterdir()] == ["digits"], "scratch was left behind"
    model = AutoModelForCausalLM.from_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert model.config.model_type == "qwen3"
    assert model.config.head_dim >= 32
    assert model.config.vocab_size == len(tokenizer)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id


@pytest.mark.usefixtures("quick")
def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    weights = [
        (make_tiny_model(tmp_path / name, seed=seed) / "model.safetensors").read_bytes() for name, seed in [("a", 0), ("b", 0), ("c", 1)]
    ]
    assert weights[0] == weights[1] != weights[2]


def test_a_model_that_is_there_is_left_alone(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("kept")
    assert make_tiny_model(tmp_path) == tmp_path
    assert (tmp_path / "config.json").read_text() == "kept"


def test_what_is_no_model_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no model"):
        make_tiny_model(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlrun_trainer.tiny import model

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "build_model", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        make_tiny_model(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_faster_maker_wins_and_both_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = make.os.rename

    def second(source: Path, target: Path) -> None:
        target.mkdir()
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (target / name).write_text("theirs")
        rename(source, target)

    monkeypatch.setattr(make.os, "rename", second)
    assert (make_tiny_model(tmp_path / "digits") / "config.json").read_text() == "theirs"


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known are digits"):
        make_tiny_model(tmp_path / "x", name="letters")
    run = subprocess.run(
        [sys.executable, "-m", "rlrun_trainer.tiny", str(tmp_path / "x"), "--name", "letters"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert "known are digits" in run.stderr
