import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rlrun.cli import doctor
from rlrun.cli.app import build_app

RUNNER = CliRunner()
EXAMPLE = Path(__file__).parents[3] / "examples" / "tiny-cpu.yaml"
COMMANDS = [
    ["up"],
    ["validate"],
    ["schema"],
    ["doctor"],
    ["status"],
    ["sessions"],
    ["session", "show"],
    ["start-session"],
    ["set-reward"],
    ["end-session"],
    ["export"],
    ["weights"],
]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RLRUN_URL", "RLRUN_ADMIN_KEY_FILE", "RLRUN_SESSION_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    result = RUNNER.invoke(build_app(), [*command, "--help"])
    assert result.exit_code == 0
    assert f"Example: rlrun {' '.join(command)}" in result.output


def test_the_version_is_printed() -> None:
    result = RUNNER.invoke(build_app(), ["--version"])
    assert (result.exit_code, result.output) == (0, "0.1.0\n")


def test_validate_summarises_a_good_document() -> None:
    result = RUNNER.invoke(build_app(), ["validate", "-f", str(EXAMPLE)])
    assert result.exit_code == 0
    assert "valid; run tiny-cpu, model tiny://digits, engine torch, grpo, 100 steps of 256 sessions" in result.output


def test_validate_json_holds_the_defaults() -> None:
    result = RUNNER.invoke(build_app(), ["validate", "-f", str(EXAMPLE), "--json"])
    assert json.loads(result.output)["spec"]["rollout"]["refreshTimeoutSeconds"] == 120.0


def test_validate_lists_every_fault_and_ends_with_2(tmp_path: Path) -> None:
    document = tmp_path / "run.yaml"
    document.write_text(EXAMPLE.read_text().replace("batchSize: 256", "batchSize: 0").replace("Staleness", "staleness"))
    result = RUNNER.invoke(build_app(), ["validate", "-f", str(document)])
    assert result.exit_code == 2
    assert "spec.trainer.batchSize: got 0; must be >= 1" in result.stderr
    assert "did you mean Staleness?" in result.stderr
    assert "next: " in result.stderr
    assert result.stdout == ""


def test_up_reports_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    result = RUNNER.invoke(build_app(), ["up", "-f", str(EXAMPLE), "--data-dir", str(tmp_path / "data")])
    assert result.exit_code == 1
    assert "data: File exists; give another with --data-dir" in result.stderr.replace("\n", " ")


def test_up_reports_a_wrong_document_before_it_starts(tmp_path: Path) -> None:
    result = RUNNER.invoke(build_app(), ["up", "-f", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "No such file or directory" in result.stderr


@pytest.mark.parametrize(
    ("path", "value", "words", "says"),
    [
        ("gateway.replicas", 2, [], "set spec.gateway.replicas to 1, or add --separate"),
        ("dataproxy.replicas", 3, [], "set spec.dataproxy.replicas to 1, or add --separate"),
        ("redis", {"url": "redis://127.0.0.1:6379/0"}, [], "spec.redis.url: `rlrun up` always starts a Redis of its own"),
        ("agents", [{"name": "a", "runnable": "m:C"}], ["--separate"], "spec.agents: agent workers are not available yet"),
    ],
)
def test_up_refuses_what_it_would_not_run(tmp_path: Path, path: str, value: object, words: list[str], says: str) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    *parents, last = path.split(".")
    room = document["spec"]
    for name in parents:
        room = room.setdefault(name, {})
    room[last] = value
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(document))
    result = RUNNER.invoke(build_app(), ["up", "-f", str(tmp_path / "r.yaml"), *words])
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


@pytest.mark.parametrize("port", ["0", "65536"])
def test_up_takes_a_real_port(port: str) -> None:
    assert RUNNER.invoke(build_app(), ["up", "-f", str(EXAMPLE), "--port", port]).exit_code == 2


def test_up_refuses_an_engine_without_adapter() -> None:
    result = RUNNER.invoke(build_app(), ["up", "-f", str(EXAMPLE.with_name("qwen3-0.6b-sglang.yaml"))])
    assert result.exit_code == 2
    assert "the adapter for sglang is not available yet" in result.stderr


def test_schema_is_json() -> None:
    result = RUNNER.invoke(build_app(), ["schema"])
    assert json.loads(result.output)["properties"]["kind"]["const"] == "RLRun"


def test_doctor_reports_each_check_as_json() -> None:
    result = RUNNER.invoke(build_app(), ["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(result.output)["checks"]}
    assert {"python", "torch", "transformers", "redis-server", "disk", "cores"} <= checks.keys()
    assert all(check["remedy"] for check in checks.values() if check["verdict"] != "ok")


def test_doctor_ends_with_1_and_a_remedy_when_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE_DISK_BYTES", 2**80)
    result = RUNNER.invoke(build_app(), ["doctor"])
    assert result.exit_code == 1
    assert "fault    disk" in result.output
    assert "next: free at least" in result.output


MISUSED = [
    (["status"], "no admin key", "--admin-key-file"),
    (["end-session"], "no session key", "--key-file"),
    (["status", "--admin-key-file", "absent"], "--admin-key-file=absent: No such file", ""),
    (["end-session", "--key", "k", "--url", "localhost:1"], "no URL of the form http://HOST:PORT", "http://127.0.0.1:8080"),
]


@pytest.mark.parametrize(("words", "message", "next_step"), MISUSED, ids=[" ".join(words) for words, _, _ in MISUSED])
def test_a_mistake_ends_with_2_and_a_next_step(words: list[str], message: str, next_step: str) -> None:
    result = RUNNER.invoke(build_app(), words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert next_step in result.stderr.partition("next: ")[2]


@pytest.mark.parametrize("words", [["nonsense"], ["set-reward", "much"], ["export", "s", "--style", "other"], ["sessions", "--limit", "0"]])
def test_unknown_words_end_with_2(words: list[str]) -> None:
    assert RUNNER.invoke(build_app(), words).exit_code == 2
