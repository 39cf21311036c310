# `make demo` and `make test` are the whole of getting started: each makes .venv and installs everything first.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# What the paper's tables are made of: make paper-tables DATA=datasets CARS=datasets/stanford_cars WEIGHTS=weights
CARS ?= $(CARS196)
PAPER = exec $(BIN)/python -m benchmarks.paper $(if $(DATA),--data "$(DATA)") $(if $(CARS),--cars "$(CARS)") \
	$(if $(WEIGHTS),--weights "$(WEIGHTS)") $(if $(OUT),--out "$(OUT)")

.PHONY: demo demo-postgres test test-slow explore lint fix results paper-tables paper-status reference docs browser clean help

help:  ## say what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /'

# The stamp is newer than pyproject.toml once everything is installed, so a second run installs nothing.
$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tammes needs Python 3.11 or newer: make test PYTHON=python3.11")'
	$(PYTHON) -m venv .venv || { echo "On Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(INSTALLED)  ## set up, train on the embedded characters, test on scripts never seen, write a page to look at
	$(BIN)/tammes train glyphs --epochs 6 --val-classes 0.1 --log-bound --out runs/demo --overwrite
	$(BIN)/tammes calibrate runs/demo
	$(BIN)/tammes report runs/demo
	@echo "Open it in a browser: $(CURDIR)/runs/demo/report.html"

demo-postgres: $(INSTALLED)  ## a gallery of the embedded characters in a PostgreSQL server of its own: fill, search, filter
	$(BIN)/python -m benchmarks.demo_postgres

lint: $(INSTALLED)  ## check format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

# Tests look at the pages in a real browser. Without one, and without the right to install it, they are skipped.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
		|| echo "No Chromium: tests that look at pages are skipped. To have them: apt-get install chromium"

test: lint browser  ## set up, lint, check types, run the tests
	$(BIN)/pytest -n auto --dist loadgroup -m "not slow and not gpu and not data"

test-slow: $(INSTALLED)  ## the long tests, and those on real data (TAMMES_DATA=folder)
	$(BIN)/pytest -m "slow or data"

explore: $(INSTALLED)  ## the tests of properties, with other examples than the last time
	$(BIN)/pytest -n auto -m "hypothesis and not gpu and not data" --hypothesis-profile=explore

fix: $(INSTALLED)  ## repair format and lint
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

results: $(INSTALLED)  ## write docs/results.md and the README's tables from what is stored in benchmarks/results
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.pictures

paper-tables: $(INSTALLED)  ## train the paper's tables, days of work; stop it whenever, the same command resumes it
	$(PAPER)

paper-status: $(INSTALLED)  ## what of the paper's tables is done, and how long the rest takes; JSON=1 for a program
	@$(PAPER) --status $(if $(JSON),--json)

reference: $(INSTALLED)  ## write docs/reference from what commands and functions say of themselves
	$(BIN)/python docs/reference.py

docs: $(INSTALLED)  ## write the site into site/; warnings are errors, no network is asked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open it in a browser: $(CURDIR)/site/index.html"

clean:  ## remove what was installed and cached
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
