# What is done with a checkout. `make` alone lists the targets.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# What is installed: the broker with its console; and all that tests and documents need.
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready

# Tests start hundreds of processes. Each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test quick versions check demo bench simulate simulate-pair torture crash-states upstream fuzz mutants nightly spark-cluster-test docs release newcomer screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything in it; PYTHON=python3.12 takes another interpreter

# The pip of the interpreter fills an environment faster than one that begins with a pip of its own.
INSTALL = $(if $(wildcard $(BIN)/pip),$(BIN)/python -m pip,$(PYTHON) -m pip --python $(BIN)/python) install \
    --disable-pip-version-check --no-compile -c constraints.txt

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Malamute needs Python 3.11 or later, and $(PYTHON) is not:" \
	         "name one with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV)"
	@if $(PYTHON) -m pip --version >/dev/null 2>&1; then $(PYTHON) -m venv --without-pip $(VENV); \
	    else $(PYTHON) -m venv $(VENV); fi

$(RUNS): pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) -e '.[http]'
	@touch $@

# uv, where it is there, takes a third of the time.
$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@{ command -v uv >/dev/null && timeout 400 uv pip install --quiet --python $(BIN)/python -c constraints.txt \
	    pip -e '.[dev,docs]'; } || $(INSTALL) --quiet pip -e '.[dev,docs]'
	@touch $(RUNS) $@

run: $(RUNS) ## start a broker on ./malamute-data with its console at http://127.0.0.1:8080/; ARGS="..." adds options
	@exec $(BIN)/malamute broker run --console $(ARGS)

test: setup ## run the tests; ARGS="-k name" runs some
	@$(BIN)/python -m pytest -n 5 $(ARGS)

quick: setup ## run the tests of the pure parts: about a minute, for the inner loop
	@$(BIN)/python -m pytest -n 4 tests/access tests/client/session tests/core tests/matching tests/protocol \
	    tests/transcripts tests/unit $(ARGS)

# An interpreter that is not there prints nothing.
OTHERS = $(foreach v,3.12 3.13,$(shell python$(v) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null))

versions: ## run the quick tests on CPython 3.12 and 3.13, each where it is there
	@for v in $(OTHERS); do $(MAKE) --no-print-directory quick VENV=.venv-$$v PYTHON=python$$v || exit 1; done

check: check-style check-types check-imports check-commits ## lint, formatting, types, imports, subjects of commits

# The parts, which may run beside each other.
.PHONY: check-style check-types check-imports check-commits compile-tests
check-style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types: setup
	$(BIN)/mypy

check-imports: setup
	$(BIN)/lint-imports --no-cache

# Subjects of commits since the rule came, where git has the history.
check-commits:
	@long=$$(git log --format=%s e3a92a63..HEAD 2>/dev/null | awk 'length > 72'); \
	    if [ -n "$$long" ]; then echo "subjects of commits have at most 72 characters:"; echo "$$long"; exit 1; fi

# In a new checkout each process of the tests would do it by itself. What is wrong with one is told when they run.
compile-tests: setup
	@$(BIN)/python -m pytest --collect-only -q >/dev/null || true

demo: $(RUNS) ## real flights and weather through all three patterns, counted at both ends
	@$(BIN)/malamute demo $(ARGS)

bench: setup ## measure this machine; ARGS="peers" runs one of the benchmarks, ARGS="--help" lists them
	@PYTHONPATH=$(CURDIR)/tests/bench $(BIN)/python -m lab $(ARGS)

simulate: setup ## the broker in a simulated world; SEED=n tells one run, RUNS=n makes many
	@$(BIN)/python tests/simulation/simulate.py $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(ARGS)

simulate-pair: setup ## a pair of brokers in a simulated world; SEED=n, RUNS=n
	@$(BIN)/python tests/simulation/sim_pair.py $(if $(SEED),--seed $(SEED)) $(if $(RUNS),--runs $(RUNS)) $(ARGS)

torture: setup ## a broker and its clients are killed, stopped and starved, and all accounted for; MINUTES=n, SEED=n
	@$(BIN)/python tests/torture/torture.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(ARGS)

crash-states: setup ## what a power failure can leave on the disk, opened; ARGS="--recordings 10 --each 200" for more
	@$(BIN)/python tests/crash/crash_states.py $(ARGS)

upstream: setup ## tests of kombu, Celery and Django's tasks, from PyPI, against a broker; ARGS=kombu runs one
	@$(BIN)/python tests/upstream/upstream.py $(ARGS)

fuzz: setup ## new random inputs for every property, then each front door led by coverage; SECONDS=n, TARGETS="codec dialogue"
	@MALAMUTE_FUZZ_EXAMPLES=20000 MALAMUTE_DEPTH=40 $(BIN)/python -m pytest -n 2 -m hypothesis \
	    --hypothesis-profile=explore --timeout=3600 $(ARGS)
	@$(BIN)/python tests/fuzz/fuzz.py $(if $(SECONDS),--seconds $(SECONDS)) $(TARGETS)
	@$(BIN)/python tests/fuzz/fuzz_live.py $(if $(SECONDS),--seconds $(SECONDS))

mutants: setup ## break the code of each requirement in a copy: its test has to fail; ARGS="WP30 WP31" takes some
	@$(BIN)/python tests/mutants/run_mutants.py $(ARGS)

nightly: setup ## the long runs with new seeds, added to docs/reliability/runs.jsonl; ARGS="torture --part 0.1"
	@$(BIN)/python tests/nightly.py $(ARGS)

spark-cluster-test: setup ## the Spark jobs on a master and two workers of this machine
	@$(BIN)/python -m pytest tests/spark/on_a_cluster.py $(ARGS)

docs: setup ## build the site into site/, with what is made from the code, and check every link
	@$(BIN)/python -c 'from malamute.config import Config; print(Config().toml(), end="")' > config/malamute.toml.new
	@mv config/malamute.toml.new config/malamute.toml
	@$(BIN)/python docs/make/diagrams.py
	@$(BIN)/python docs/make/performance.py
	@$(BIN)/python docs/make/reliability.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@$(BIN)/python -m pytest tests/unit/test_docs.py

release: setup ## build wheel and sdist into dist/, and check both in clean environments; ARGS=--draft before the changelog has a date
	@$(BIN)/python deploy/release.py $(ARGS)

newcomer: setup ## do what README says in a clean clone, in a terminal of 80x24; build/newcomer.txt has all that was shown
	@$(BIN)/python tests/newcomer/newcomer.py $(ARGS)

screenshots: setup ## take the pictures of terminals and of the console in docs/images anew
	@$(BIN)/python docs/make/screenshots.py
	@MALAMUTE_PICTURES=docs/images $(BIN)/python -m pytest -rs tests/gateway/test_gateway_console_browser.py -k pictures

clean: ## remove .venv, caches and builds; the data directory stays
	rm -rf $(VENV) .venv-* build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
