# `make demo` and `make test` work on a fresh machine: both first build .venv, once.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
BENCHMARKS_INSTALLED := $(VENV)/.benchmarks_installed
AUDIT := $(VENV)/audit
LOWEST := $(VENV)/lowest
OLDEST = $(shell sed -nE '/^dependencies/,/^]/s/^    "(.*)>=(.*)",/\1==\2/p' pyproject.toml | grep -v '^torch==')
DATA ?= $(TABMOCO_DATA_DIR)
THREADS ?= 2
BENCHMARKS := $(addprefix benchmark-,anomaly planted few-label ablation clusters duplicates imputation update)

export OMP_NUM_THREADS ?= $(THREADS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-lowest check format audit licences clean
.PHONY: $(BENCHMARKS)

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

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
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m slow -n $(THREADS) --dist loadfile --timeout 900 $(PYTEST) || test $$? -eq 5

# The oldest torch brings the libraries of a GPU with it, some gigabytes; it is tested where somebody has them.
test-lowest: ## the core's tests with the oldest packages that pyproject.toml allows, torch aside
	test -x $(LOWEST)/bin/python || python3 -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet "torch==2.13.0" $(OLDEST) "polars==1.3" jinja2 hypothesis pytest pytest-timeout
	$(LOWEST)/bin/python -m pytest -p no:cacheprovider tests/tables tests/nn tests/neighbors tests/golden tests/test_config.py \
		tests/test_card.py tests/test_privacy.py $(PYTEST)

check: $(INSTALLED) ## lint, import layers and types
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(VENV)/bin/lint-imports
	$(PYTHON) -m mypy

format: $(INSTALLED) ## rewrite the code in the house's layout
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

# What is known to be weak must be found first: otherwise the list cannot be reached, and silence would mean nothing.
audit: $(INSTALLED) ## known weaknesses of the packages in use, where the list of them can be reached
	@test -x $(AUDIT)/bin/pip-audit || { python3 -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install --quiet pip-audit; }
	@echo "jinja2==2.4.1" > $(AUDIT)/weak.txt
	@if $(AUDIT)/bin/pip-audit --no-deps --disable-pip -r $(AUDIT)/weak.txt 2>&1 | grep -q "^Found"; then \
		PIPAPI_PYTHON_LOCATION=$(abspath $(PYTHON)) $(AUDIT)/bin/pip-audit --skip-editable; \
	else \
		echo "Skipped: the list of known weaknesses cannot be reached from here."; \
	fi

licences: $(INSTALLED) ## write docs/licences.md from what the installed packages state
	$(PYTHON) docs/licences.py

$(BENCHMARKS_INSTALLED): $(INSTALLED)
	$(PYTHON) -m pip install --quiet --editable ".[benchmarks]"
	touch $@

# They resume where they stopped; `make benchmark-anomaly BENCHMARK=--quick` takes a quarter of an hour.
benchmark-anomaly: ## tabmoco against what people use today, on the 22 tables of DATA
benchmark-planted: ## who finds planted anomalies, and who names their cells, on 8 mixed tables of DATA
benchmark-few-label: ## few labels: tabmoco against trees and linear models, on the 26 tables of DATA
benchmark-ablation: ## what each of MoCo's parts is worth on tables, on 8 tables of DATA
benchmark-clusters: ## clusters of embeddings and of cells against known classes, on 8 tables of DATA
benchmark-duplicates: ## planted duplicates in 5 tables of DATA, and the record-linkage package's own
benchmark-imputation: ## filled gaps against the cells that were hidden, on tables of DATA
benchmark-update: ## going on with new rows, on tables of DATA cut in time
$(BENCHMARKS): $(BENCHMARKS_INSTALLED)
	@test -n "$(DATA)" || { echo "DATA must name the folder of tables: make $@ DATA=..."; exit 2; }
	$(PYTHON) -m benchmarks.$(subst -,_,$(@:benchmark-%=%)) --data-dir $(DATA) --threads $(THREADS) $(BENCHMARK)

clean: ## remove caches and the virtual environment
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
