# Every target sets up what it needs: a virtual environment in .venv, made from requirements.lock.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.driftline-stamp
# The first of these that is Python 3.11 or newer; set PYTHON to choose another.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
ARGS ?=
# Test processes side by side: most tests wait for a disk, a server or another process.
JOBS ?= 2
# An emulator of Azure's blobs, for the tests; newer releases want a newer Node.js than Debian has.
AZURITE_VERSION := 3.34.0
AZURITE := $(VENV)/azurite/.installed-$(AZURITE_VERSION)

# An incremental indexer to compare with; it has an environment of its own, since nothing else needs it.
PEERS := llama-index-core==0.14.25 model2vec
PEERS_STAMP := $(VENV)/peers/.installed-$(subst $(eval ) ,_,$(PEERS))

.PHONY: help setup demo test soak bench peers azurite readme lint format types layers check lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## the virtual environment, with all that development needs

demo: $(STAMP) ## index a real tree of more than 1,000 files and search it
	@bash tests/demo.sh "$(abspath $(BIN))"

test: $(STAMP) ## all tests (ARGS="-k name" for some)
	@command -v git >/dev/null || { echo "make: the tests need git (Debian: apt-get install git)" >&2; exit 1; }
	@[ -e $(AZURITE) ] || $(MAKE) --no-print-directory azurite || echo "make: the tests of Azure are skipped" >&2
	@command -v chromium >/dev/null || \
		echo "make: the tests of web pages are skipped without Chromium (Debian: apt-get install chromium)" >&2
	$(BIN)/pytest -n $(JOBS) --dist loadgroup $(ARGS)

soak: $(STAMP) ## the long proofs in full: a minute of 13 processes, hundreds of random histories
	DRIFTLINE_SOAK_SECONDS=60 DRIFTLINE_SOAK_FACTOR=30 $(BIN)/pytest --timeout 3600 \
		tests/faults/test_soak.py tests/faults/test_compact_crash.py tests/property $(ARGS)

bench: $(STAMP) peers ## every benchmark, beside its peers, into tests/benchmarks/RESULTS.md (ARGS="searching" for some)
	$(BIN)/python tests/benchmarks/bench.py $(ARGS)

peers: $(STAMP) $(PEERS_STAMP) ## what the benchmarks compare with

azurite: $(STAMP) $(AZURITE) ## what the tests of Azure need; needs npm

readme: $(STAMP) ## every command of README.md
	$(BIN)/pytest tests/docs $(ARGS)

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

layers: $(STAMP) ## import-linter: which room may import what
	$(BIN)/lint-imports

check: lint types layers readme test ## all that CI runs

lock: $(STAMP) ## refresh requirements.lock to the newest versions that pyproject.toml allows
	$(BIN)/uv pip compile --quiet --upgrade --universal --all-extras --python-version 3.11 \
		--annotation-style line --custom-compile-command "make lock" pyproject.toml -o requirements.lock
	@! grep -n '://' requirements.lock

clean: ## remove everything that was built
	rm -rf $(VENV) .demo build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer was not found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || \
		{ echo "make: $(PYTHON) cannot make a virtual environment (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "make: installing into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -e .
	@touch $@

$(AZURITE):
	@command -v npm >/dev/null || { echo "make: Azurite needs npm (Debian: apt-get install npm)" >&2; exit 1; }
	@echo "make: installing Azurite into $(VENV)/azurite"
	@mkdir -p $(VENV)/azurite
	@npm install --prefix $(VENV)/azurite --silent --no-audit --no-fund --no-save --ignore-scripts --omit=dev \
		--omit=optional azurite@$(AZURITE_VERSION)
	@touch $@

$(PEERS_STAMP):
	@echo "make: installing $(PEERS) into $(VENV)/peers"
	@$(BIN)/python -m venv --clear $(VENV)/peers
	@$(VENV)/peers/bin/python -m pip install -qq --disable-pip-version-check $(PEERS)
	@touch $@
