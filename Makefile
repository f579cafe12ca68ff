# rlrun: `make help` lists the targets.
VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
# What the wire must stay compatible with: the commit that this work started from.
BREAKING_AGAINST ?= $(shell git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD)

.DEFAULT_GOAL := help
.PHONY: help demo test e2e chaos lint bench proto lock

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	@test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

test: $(VENV)/.installed ## install what is missing, run unit and integration tests
	$(PY) -m pytest tests/unit tests/integration

demo: $(VENV)/.installed ## the whole loop on this machine: an agent, rewards, training, a reward curve
	$(PY) scripts/demo.py

e2e: $(VENV)/.installed ## the whole loop with real processes (minutes)
	$(PY) -m pytest tests/e2e -m "not chaos"

chaos: $(VENV)/.installed ## kill each service under load, check that nothing is lost (minutes)
	$(PY) -m pytest tests/e2e -m chaos -s

bench: $(VENV)/.installed ## calls/s, latency, CPU per call; ARGS=--peers compares with other gateways
	$(PY) tests/bench/run.py $(ARGS)

lint: $(VENV)/.installed ## ruff, mypy strict, import-linter, buf lint and breaking, codespell, drift of generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && $(abspath $(BIN))/buf lint
	cd proto && $(abspath $(BIN))/buf breaking --against '../.git#ref=$(BREAKING_AGAINST),subdir=proto'
	$(PY) scripts/gen_protos.py --check
	$(BIN)/codespell rlrun services tests docs examples scripts README.md CHANGELOG.md

proto: $(VENV)/.installed ## regenerate rlrun/proto from proto/
	$(PY) scripts/gen_protos.py

lock: $(VENV)/.installed ## rewrite the pinned requirement files
	PATH=$(abspath $(BIN)):$$PATH requirements/lock.sh
