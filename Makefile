# Everything a developer or CI runs; `make help` lists it. Each target sets itself up: the virtual
# environment is made once and again only when the dependencies change.

PYTHON ?= python3
VENV := .venv
VENV_OLDEST := .venv-oldest
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_OLDEST := $(VENV_OLDEST)/.installed
STAGE := build/pkg
PYTEST := -m pytest -n logical --maxprocesses 8 --dist loadfile
# What the oldest supported transformers has without sdpa attention, or only with deprecated calls.
YOUNGER_FAMILIES := codegen or gptj or gpt_bigcode

# Small models on few cores are slowed down by threads that spin while they wait.
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1

# Each worker of pytest has one core.
unit test-full test-oldest: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full test-oldest lint format types unit docs stage build clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 16

setup: $(INSTALLED)  ## Make the virtual environment in .venv

demo: $(INSTALLED)  ## Decode three prompts with a small real model, as chain and as tree
	$(BIN)/treespec demo

test: lint types unit docs  ## What CI runs: lint, types, tests, documentation

test-full: lint types $(INSTALLED)  ## Every test, also the slow ones, those with real models, and the oldest transformers
	$(BIN)/python $(PYTEST) -m ""
	$(MAKE) test-oldest docs

test-oldest: $(INSTALLED_OLDEST)  ## A selection of the tests on the oldest supported transformers
	$(VENV_OLDEST)/bin/python $(PYTEST) -m "oldest and not slow and not models and not gpu" \
		-k "not ($(YOUNGER_FAMILIES))"

lint: $(INSTALLED)  ## Check style, format and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

format: $(INSTALLED)  ## Mend what can be mended automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: stage  ## Check the types of the package as it installs
	$(BIN)/mypy --cache-dir .mypy_cache/stage $(STAGE)/treespec

unit: $(INSTALLED)  ## Run the tests that need neither much time, nor real models, nor a GPU
	$(BIN)/python $(PYTEST)

docs: stage  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

# The source tree keeps heads/ and training/ beside treespec/; tools that do not follow the
# package map read the package from here. What an earlier build left behind must not get in.
stage: $(INSTALLED)
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target $(STAGE) .

build: $(INSTALLED)  ## Make the source distribution and the wheel in dist/
	rm -rf build dist
	$(BIN)/python -m build --no-isolation

clean:  ## Remove what the other targets made, but for the virtual environments
	rm -rf build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(INSTALLED): pyproject.toml constraints/common.txt constraints/ci.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "treespec needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints/ci.txt -e '.[dev,docs,demo]'
	touch $@

$(INSTALLED_OLDEST): pyproject.toml constraints/common.txt constraints/oldest.txt $(INSTALLED)
	test -x $(VENV_OLDEST)/bin/python || $(BIN)/python -m venv $(VENV_OLDEST)
	$(VENV_OLDEST)/bin/python -m pip install -c constraints/oldest.txt -e '.[dev]'
	touch $@
