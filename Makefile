# rlrun: `make help` lists the targets.
VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help test lint proto lock

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	@test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

test: $(VENV)/.installed ## install what is missing, run unit and integration tests
	$(PY) -m pytest tests/unit tests/integration

lint: $(VENV)/.installed ## ruff, mypy strict, import-linter, buf, codespell, drift of generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && $(abspath $(BIN))/buf lint
	$(PY) scripts/gen_protos.py --check
	$(BIN)/codespell rlrun services tests docs examples scripts README.md CHANGELOG.md

proto: $(VENV)/.installed ## regenerate rlrun/proto from proto/
	$(PY) scripts/gen_protos.py

lock: $(VENV)/.installed ## rewrite the pinned requirement files
	PATH=$(abspath $(BIN)):$$PATH requirements/lock.sh
