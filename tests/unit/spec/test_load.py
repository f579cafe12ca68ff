import json
from pathlib import Path

import pytest

from rlrun.errors import ConfigError
from rlrun.spec import RLRun, load, loads, parse
from rlrun.spec.load import MAX_DOCUMENT_BYTES

HEAD = "apiVersion: rlrun.dev/v1alpha1\nkind: RLRun\nmetadata: {name: demo}\n"
GOOD = HEAD + "spec:\n  model: {uri: 'tiny://digits'}\n"


def spec(text: str) -> str:
    return GOOD + "".join(f"  {line}\n" for line in text.splitlines())


def test_the_smallest_document_takes_its_defaults() -> None:
    run = loads(GOOD)
    assert run.spec.rollout.max_head_off_policyness == 2
    assert run.spec.gateway.limits.max_body_bytes == 8 * 1024 * 1024
    assert run.spec.trainer is not None
    assert run.spec.trainer.algorithm.name == "grpo"
    assert run.spec.redis.embedded is not None


def test_a_null_trainer_only_records() -> None:
    assert loads(spec("trainer: null")).spec.trainer is None


def test_the_resolved_document_reads_back_as_itself() -> None:
    run = loads(spec("trainer: {algorithm: {name: rloo}, batchSize: 8}"))
    assert parse(run.to_document()) == run


def test_an_explicit_null_survives_resolving() -> None:
    run = loads(spec("trainer: null").replace("'tiny://digits'", "'tiny://digits', toolCallParser: null"))
    again = parse(json.loads(json.dumps(run.to_document())))
    assert again.spec.trainer is None
    assert again.spec.model.tool_call_parser is None


def test_python_code_uses_snake_case_names() -> None:
    run = loads(GOOD)
    assert RLRun.model_validate(run.model_dump()) == run


@pytest.mark.parametrize(
    ("text", "value"), [("1e-5", 1e-5), ("1.0e-05", 1e-5), ("1E-2", 0.01), (".5", 0.5), ("1", 1.0)], ids=lambda value: str(value)
)
def test_numbers_are_read_as_kubectl_reads_them(text: str, value: float) -> None:
    trainer = loads(spec(f"trainer: {{optimizer: {{lr: {text}}}}}")).spec.trainer
    assert trainer is not None
    assert trainer.optimizer.lr == value


FAULTS = [
    # (what is added to spec, the line that must be reported)
    ("rollout: {maxHeadOffPolicyness: -1}", "spec.rollout.maxHeadOffPolicyness: got -1; must be >= 0 ("),
    ("rollout: {maxHeadOffpolicyness: 1}", "spec.rollout.maxHeadOffpolicyness: unknown field; did you mean maxHeadOffPolicyness?"),
    ("rollout: {max_head_off_policyness: 1}", "spec.rollout.max_head_off_policyness: unknown field; did you mean maxHeadOffPolicyness?"),
    ("zzz: 1", "spec.zzz: unknown field; remove it; known here: model, gateway, "),
    ("redis: {embedded: {zzz: 1}}", "spec.redis.embedded.zzz: unknown field; remove it; nothing is allowed here"),
    (
        "rollout: {admission: staleness}",
        'spec.rollout.admission: got "staleness"; must be one of Staleness, Granted, Unlimited; did you',
    ),
    ("rollout: {refreshTimeoutSeconds: 4000}", "spec.rollout.refreshTimeoutSeconds: got 4000.0; must be < sessionTimeoutSeconds (3600); "),
    ("rollout: {exportStyle: Concat, turnDiscount: 0.9}", "spec.rollout.turnDiscount: got 0.9; must be 1.0 with exportStyle Concat"),
    ("rollout: {sessionTimeoutSeconds: .nan}", "spec.rollout.sessionTimeoutSeconds: got NaN; must be a finite number"),
    ("rollout: null", "spec.rollout: got null; must be an object"),
    ("rollout: {tasks: {dataset: d}}", 'spec.rollout.tasks: got "an object"; needs an agent that runs the tasks; add one to spec.agents'),
    ("rollout: {tasks: {dataset: d, groupSize: 300}}", "spec.rollout.maxConcurrentSessions: got 256; must be >= tasks.groupSize (300)"),
    (
        "agents: [{name: a, runnable: 'm:C'}]\nrollout: {tasks: {dataset: d, groupSize: 8}}",
        "spec.trainer.batchSize: got 4; must be a multiple of rollout.tasks.groupSize (8)",
    ),
    (
        "agents: [{name: a, runnable: 'm:C'}]\nrollout: {tasks: {dataset: d, groupSize: 1}}\ntrainer: {algorithm: {name: rloo}}",
        "spec.rollout.tasks.groupSize: got 1; must be >= 2 with algorithm rloo",
    ),
    (
        "agents: [{name: a, runnable: 'm:C'}]\nrollout: {tasks: {dataset: d, groupSize: 2, agent: b}}",
        'spec.rollout.tasks.agent: got "b"; must name one of spec.agents (a); correct it',
    ),
    (
        "agents: [{name: a, runnable: 'm:C'}, {name: b, runnable: 'm:C'}]\nrollout: {tasks: {dataset: d, groupSize: 2}}",
        "spec.rollout.tasks.agent: got null; must name one of a, b",
    ),
    ("agents: [{name: a, runnable: 'm:C'}, {name: a, runnable: 'm:C'}]", 'spec.agents[1].name: got "a"; must be unique in spec.agents'),
    ("agents: [{name: a, runnable: m}]", 'spec.agents[0].runnable: got "m"; must match '),
    ("agents: [{name: a}]", "spec.agents[0].runnable: missing; must be given (Class that implements"),
    ("trainer: {batchSize: '4'}", 'spec.trainer.batchSize: got "4"; must be an integer, without quotes'),
    ("trainer: {batchSize: 4.5}", "spec.trainer.batchSize: got 4.5; must be an integer"),
    ("trainer: {batchSize: true}", "spec.trainer.batchSize: got true; must be an integer"),
    ("trainer: {batchSize: 0}", "spec.trainer.batchSize: got 0; must be >= 1"),
    ("trainer: {optimizer: {lr: -1}}", "spec.trainer.optimizer.lr: got -1; must be > 0"),
    ("trainer: {optimizer: {warmupSteps: 500}}", "spec.trainer.optimizer.warmupSteps: got 500; must be <= totalSteps (100)"),
    (
        "trainer: {algorithm: {name: GRPO}}",
        'spec.trainer.algorithm: got {"name": "GRPO"}; name must be one of ppo, grpo, drGrpo, rloo',
    ),
    ("trainer: {algorithm: {epsClip: 0.1}}", 'spec.trainer.algorithm: got {"epsClip": 0.1}; name must be one of ppo, grpo'),
    ("trainer: {algorithm: {name: ppo, epsclip: 0.1}}", "spec.trainer.algorithm.epsclip: unknown field; did you mean epsClip?"),
    ("trainer: {algorithm: {name: ppo, cClip: 1.0}}", "spec.trainer.algorithm.cClip: got 1.0; must be > 1"),
    ("trainer: {algorithm: {name: ppo, rewardScaling: 0}}", "spec.trainer.algorithm.rewardScaling: got 0.0; must not be 0"),
    ("trainer: {algorithm: {name: ppo, minibatches: 8}}", "spec.trainer.algorithm.minibatches: got 8; must be <= batchSize (4)"),
    (
        "trainer: {algorithm: {name: ppo, rewardNorm: {meanLevel: None, leaveOneOut: true}}}",
        "spec.trainer.algorithm.rewardNorm.leaveOneOut: got true; needs meanLevel Batch or Group",
    ),
    (
        "trainer: {algorithm: {name: ppo, rejectionSampling: {}}}",
        'spec.trainer.algorithm.rejectionSampling: got "an object"; needs useDecoupledLoss: true',
    ),
    ("trainer: {packing: {maxTokensPerRow: 65536}}", "spec.trainer.packing.maxTokensPerRow: got 65536; must be <= maxTokensPerMicrobatch"),
    (
        "trainer: {packing: {maxTokensPerRow: 128}}",
        "spec.trainer.packing.maxTokensPerRow: got 128; must be >= model.maxTotalTokens (",
    ),
    ("worker: {engine: {name: sglan}}", 'spec.worker.engine.name: got "sglan"; must be one of torch, sglang, vllm; did you mean sglang'),
    ("worker: {engine: {tensorParallel: 2}}", "spec.worker.engine.tensorParallel: got 2; must be 1 with the torch engine"),
    (
        "worker: {engine: {name: sglang, args: ['--port=1']}}",
        'spec.worker.engine.args[0]: got "--port=1"; is set by rlrun itself',
    ),
    ("worker: {engine: {maxTotalTokens: 100}}", "spec.worker.engine.maxTotalTokens: got 100; must be >= model.maxTotalTokens (32768)"),
    (
        "gateway: {limits: {keepAliveSeconds: 700}}",
        "spec.gateway.limits.keepAliveSeconds: got 700.0; must be < requestTimeoutSeconds (",
    ),
    ("dataproxy: {ephemeralTail: {enabled: true}}", "spec.dataproxy.ephemeralTail.pattern: got null; must be set when enabled is true"),
    (
        "dataproxy: {ephemeralTail: {enabled: true, pattern: '('}}",
        'spec.dataproxy.ephemeralTail.pattern: got "("; must be a regular expression (missing ), unterminated subpattern at position 0)',
    ),
    ("redis: {embedded: {}, url: 'redis://h'}", 'spec.redis: got ["embedded", "url"]; must hold exactly one of embedded, secretRef, url'),
    ("redis: {}", "spec.redis: got []; must hold exactly one of embedded, secretRef, url"),
]


@pytest.mark.parametrize(("text", "line"), FAULTS, ids=[line.partition(": ")[0] + f"-{index}" for index, (_, line) in enumerate(FAULTS)])
def test_a_fault_names_field_value_limit_and_remedy(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(spec(text))
    lines = caught.value.message.splitlines()
    assert [found for found in lines if found.startswith(line)], lines


REJECTION_FAULTS = [
    # areal: ratio upper > 1, ratio lower > 0, k2/k3 upper > 0, lower < upper, clamp only with ratio, agg needs sequence level
    ("upper: 1.0", "upper: got 1.0; must be > 1 with metric Ratio"),
    ("lower: 0.0", "lower: got 0.0; must be > 0 with metric Ratio"),
    ("action: Clamp, lower: -1.0", "lower: got -1.0; must be >= 0 with metric Ratio and action Clamp"),
    ("metric: KlK2, upper: 0.0", "upper: got 0.0; must be > 0 with metric KlK2"),
    ("metric: KlK3, upper: -1.0", "upper: got -1.0; must be > 0 with metric KlK3"),
    ("lower: 6.0", "lower: got 6.0; must be < upper (5)"),
    ("metric: KlK1, action: Clamp", 'action: got "Clamp"; must be Mask with metric KlK1'),
    ("agg: Max", 'agg: got "Max"; has no effect with level Token'),
]


@pytest.mark.parametrize(("text", "line"), REJECTION_FAULTS, ids=[text for text, _ in REJECTION_FAULTS])
def test_rejection_sampling_refuses(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(spec(f"trainer: {{algorithm: {{name: grpo, useDecoupledLoss: true, rejectionSampling: {{{text}}}}}}}"))
    assert f"spec.trainer.algorithm.rejectionSampling.{line}" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{upper: 1.2, lower: 0.5}",
        "{action: Clamp, lower: 0.0}",
        "{metric: KlK1, upper: -0.5}",
        "{level: Sequence, metric: KlK2, agg: Max, upper: 0.1}",
    ],
)
def test_rejection_sampling_accepts(text: str) -> None:
    assert loads(spec(f"trainer: {{algorithm: {{name: grpo, useDecoupledLoss: true, rejectionSampling: {text}}}}}"))


@pytest.mark.parametrize(
    "name",
    ["Demo", "1demo", "demo-", "de_mo", "", "d" * 41, "demo\n"],
    ids=["upper", "digit", "hyphen", "underscore", "empty", "long", "newline"],
)
def test_a_name_is_a_dns_label_of_at_most_40_characters(name: str) -> None:
    document = {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "tiny://digits"}},
    }
    with pytest.raises(ConfigError, match=r"metadata\.name: got"):
        parse(document)


@pytest.mark.parametrize("uri", ["http://x", "tiny:digits", "hf://", "file:///a/../b", "s3://a b", ""])
def test_a_model_uri_has_a_known_scheme_and_no_way_up(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"spec\.model\.uri: got"):
        loads(HEAD + f"spec: {{model: {{uri: '{uri}'}}}}")


@pytest.mark.parametrize("uri", ["tiny://digits", "file:///models/a", "hf://Qwen/Qwen3-0.6B", "pvc://claim/path", "s3://bucket/key"])
def test_every_scheme_is_accepted(uri: str) -> None:
    assert loads(HEAD + f"spec: {{model: {{uri: '{uri}'}}}}").spec.model.uri == uri


@pytest.mark.parametrize("engine", ["torch", "sglang", "vllm"])
def test_every_engine_is_accepted(engine: str) -> None:
    assert loads(spec(f"worker: {{engine: {{name: {engine}}}}}")).spec.worker.engine.name == engine


def test_all_faults_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        loads(HEAD + "spec: {rollout: {turnDiscount: 2}, trainer: {batchSize: 0, totalSteps: 0}, worker: {replicas: -1}}")
    paths = {line.partition(": ")[0] for line in caught.value.message.splitlines()[1:]}
    assert paths == {"spec.model", "spec.rollout.turnDiscount", "spec.trainer.batchSize", "spec.trainer.totalSteps", "spec.worker.replicas"}


def test_a_password_in_the_redis_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        loads(spec("redis: {url: 'redis://user:hunter2@host:6379'}"))
    assert "must not hold a password" in caught.value.message
    assert "hunter2" not in caught.value.message


TEXTS = [
    ("", "empty; write an RLRun document"),
    ("# nothing\n---\n", "empty; write an RLRun document"),
    (GOOD + "---\n" + GOOD, "holds 2 YAML documents; keep one RLRun per file"),
    ("[1]", "got [1]; must be an object with apiVersion, kind, metadata and spec"),
    (GOOD.replace("kind: RLRun", "kind: Pod"), 'kind: got "Pod"; must be RLRun'),
    (GOOD.replace("kind: RLRun\n", ""), "kind: missing; must be RLRun"),
    (GOOD.replace("v1alpha1", "v1"), 'apiVersion: got "rlrun.dev/v1"; must be rlrun.dev/v1alpha1'),
    (GOOD + "spec: {}\n", "line 6, column 1: field 'spec' is given twice; remove one"),
    (spec("rollout: {turnDiscount: 1, turnDiscount: 0.5}"), "field 'turnDiscount' is given twice"),
    (spec("rollout: {1: 2}"), "field name 1 is not a string; put it in quotes"),
    (spec("rollout: &a {}\nworker: *a"), "aliases are not supported; repeat the value"),
    (spec("rollout: {"), "line 7, column 1: "),
    ("a: !!python/object/apply:os.getcwd []", "tag tag:yaml.org,2002:python/object/apply:os.getcwd is not supported; remove it"),
    (spec("rollout: !!timestamp x"), "tag tag:yaml.org,2002:timestamp is not supported"),
    (spec(f"rollout: {'9' * 5000}"), "number of 5000 digits; shorten it"),
    (spec('rollout: "\\ud800"'), "half of a surrogate pair is no character"),
    (spec("rollout: {? [a] : 1}"), "field name ['a'] is not a string"),
    (spec("rollout: {<<: {turnDiscount: 1}}"), "spec.rollout.<<: unknown field"),
    (spec("rollout: " + "[" * 220 + "]" * 220), "the document: recursion limit exceeded"),
    (spec("rollout: " + "[" * 150 + "]" * 150), "spec.rollout: got [[[["),
    ("a: \x00", "not YAML"),
    ("[" * 5000, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=[message[:40] for _, message in TEXTS])
def test_a_wrong_text_is_explained(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text, source="run.yaml")
    assert caught.value.message.startswith("run.yaml:")
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"kind: \xff", "byte 6 is not UTF-8; save the file as UTF-8"),
        (b"#" * (MAX_DOCUMENT_BYTES + 1), "larger than 1048576 bytes"),
        (None, "No such file or directory; give the path of an RLRun document"),
    ],
    ids=["encoding", "size", "missing"],
)
def test_a_wrong_file_is_explained(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.message.startswith(str(path))
    assert message in caught.value.message
