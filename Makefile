# One target per habit; CI runs the same. `make` alone lists them.
#
# PYTHON     the interpreter that makes .venv (>= 3.10)
# ARGS       flags passed on: make serve ARGS="--port 8123"
# PIP_ARGS   flags for pip. torch's default wheels for Linux carry CUDA (gigabytes); on a machine without a GPU a
#            CPU-only torch is enough: make install PIP_ARGS="--extra-index-url <torch's CPU wheel index>"
# EXTRAS     what `make serve` installs beside the base: `cpu` is the faster runner on CPUs; EXTRAS= for none

PYTHON ?= python3
EXTRAS ?= cpu
VENV ?= .venv
ARGS ?=
PIP_ARGS ?=
BENCH ?= [!_]*
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
# Stamps: older than what they were made from, they are made again.
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
EVAL := $(VENV)/.eval-installed
RAY := $(VENV)/.ray-installed

.DEFAULT_GOAL := help
.PHONY: help install serve check format test test-slow conformance test-live test-ray test-gpu bench schema clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(DEV) ## everything for work on the project, into .venv

serve: $(RUNTIME) ## serve the default model; ARGS="--port 8123 --config FILE" are passed on
	@exec $(BIN)/llm-inference serve $(ARGS)

check: $(DEV) ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(DEV) ## the tests that CI runs
	$(BIN)/python -m pytest -m "not slow and not gpu and not conformance and not live_engine and not ray" $(ARGS)

test-slow: $(EVAL) ## the tests that take minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

conformance: $(DEV) ## one suite on every engine that is installed; results go to docs/engines_live.json
	$(BIN)/python -m pytest tests/conformance -m "not slow" --record docs/engines_live.json $(ARGS)
	$(BIN)/python scripts/engines_document.py

test-live: $(DEV) ## engines that are libraries, where they are installed
	$(BIN)/python -m pytest -m live_engine $(ARGS)

test-ray: $(RAY) ## engines in a local Ray cluster
	$(BIN)/python -m pytest -m ray $(ARGS)

test-gpu: $(DEV) ## the tests that need a GPU
	$(BIN)/python -m pytest -m gpu $(ARGS)

bench: $(DEV) ## what measures speed: every file in benchmarks/, or BENCH=scheduler alone; ARGS are passed on
	@set -e; for file in benchmarks/$(BENCH).py; do echo "== $$file"; $(BIN)/python "$$file" $(ARGS); done

schema: $(DEV) ## write configs/schema.json anew
	$(BIN)/llm-inference config --schema > configs/schema.json

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: $(PYTHON) is older than Python 3.10; say another: make PYTHON=python3.11 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (a few minutes the first time)" >&2
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --quiet -e '.[$(EXTRAS)]'
	@touch $@

$(DEV): $(RUNTIME)
	$(PIP) --quiet -e '.[dev]'
	@touch $@

$(RAY): $(DEV)
	$(PIP) --quiet -e '.[dev,ray]'
	@touch $@

$(EVAL): $(DEV)
	$(PIP) --quiet -e '.[dev,eval]'
	@touch $@
