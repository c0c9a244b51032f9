# Two commands matter: `make test` and `make demo`. Each needs only make and Python 3.11 or newer with its venv
# module; the first one that runs creates .venv and installs the versions of constraints.txt into it, once.

.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python

# The first interpreter that really runs, is new enough and can make a virtual environment; or say PYTHON=...
CAN_BUILD := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python python3.14; do \
	if "$$p" -c '$(CAN_BUILD)' >/dev/null 2>&1; then echo "$$p"; break; fi; done)

# Another project's settings must not leak into this environment.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PIP_USER PIP_TARGET PIP_PREFIX PIP_CONSTRAINT
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: help test demo lint format docs soak mutants constraints clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

test: $(VENV)/installed ## every suite that a bare machine can run, one line each at the end
	@$(PY) tests/run_suites.py

demo: $(VENV)/installed ## the product at work, on two embedded engines, through Airflow
	@$(PY) demo/run.py

lint: $(VENV)/installed ## ruff and mypy
	@$(PY) tests/run_suites.py lint

format: $(VENV)/installed ## let ruff rewrite what it can
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

docs: $(VENV)/installed ## write the pages of docs/reference that are made from the code
	@$(PY) docs/generate.py

STEPS ?= 300000
SEED ?= $(shell date +%s)
soak: $(VENV)/installed ## the machine of tests/machine for longer: make soak STEPS=300000 SEED=1
	@DPONE_TEST_MACHINE_STEPS=$(STEPS) DPONE_TEST_MACHINE_SEED=$(SEED) $(PY) -m pytest -q tests/machine/test_machine.py

mutants: $(VENV)/installed ## break the code in one place at a time: each time a test must fail
	@$(PY) -m tests.mutants

# The rule's recipe is one shell, so that a failure stops it; the stamp is written last.
$(VENV)/installed: pyproject.toml constraints.txt
	@set -e; \
	if ! $(PY) -c 'import pip' >/dev/null 2>&1; then \
	  if [ -z '$(PYTHON)' ] || ! '$(PYTHON)' -c '$(CAN_BUILD)' >/dev/null 2>&1; then \
	    echo 'No Python 3.11 or newer with its venv module was found.' >&2; \
	    echo 'Install one (Debian and Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3' >&2; \
	    exit 1; \
	  fi; \
	  echo "Creating $(VENV) with $$('$(PYTHON)' -c 'import platform, sys; print(sys.executable, platform.python_version())')"; \
	  '$(PYTHON)' -m venv --clear $(VENV); \
	fi; \
	echo "Installing $$(grep -c '==' constraints.txt) packages into $(VENV): once, one to three minutes"; \
	$(PY) -m pip install --quiet --editable '.[embedded,demo,test]' --constraint constraints.txt; \
	echo 'Installed.'; \
	touch $@

constraints: ## resolve the newest versions anew and freeze them (keeps the comment lines and the marked ones)
	@set -e; \
	new=$$(mktemp -d ./.constraints.XXXXXX); trap 'rm -rf "$$new"' EXIT; \
	'$(PYTHON)' -m venv "$$new/venv"; \
	"$$new/venv/bin/python" -m pip install --quiet --editable '.[embedded,demo,test]'; \
	{ grep '^#' constraints.txt; \
	  { "$$new/venv/bin/python" -m pip freeze --exclude-editable; grep '^[^#].*;' constraints.txt; } | LC_ALL=C sort -f; } > "$$new/txt"; \
	mv "$$new/txt" constraints.txt

clean: ## remove the environment and every cache
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
