# `make demo` and `make test` work on a fresh machine: both first build .venv, once.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
THREADS ?= 2

export OMP_NUM_THREADS ?= $(THREADS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(INSTALLED): pyproject.toml
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet "torch==2.13.0"
	$(PYTHON) -m pip install --quiet --editable ".[dev]"
	touch $@

demo: $(INSTALLED) ## pretrain on a year of New York flights, then embed, score and search them
	$(PYTHON) examples/flights.py $(DEMO)

test: check ## lint, import layers, types, then the default tests
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(THREADS) --dist loadfile $(PYTEST)

# pytest ends with 5 if there is no such test.
test-slow: $(INSTALLED) ## the tests that train for longer
	$(PYTHON) -m pytest -m slow --timeout 900 $(PYTEST) || test $$? -eq 5

check: $(INSTALLED) ## lint, import layers and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(VENV)/bin/lint-imports
	$(PYTHON) -m mypy

format: $(INSTALLED) ## rewrite the code in the house's layout
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

clean: ## remove caches and the virtual environment
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
