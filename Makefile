# make train       train the number-words translator: data in the box, minutes on two cores;
#                  ARGS=--config.steps=300 makes a shorter run of it
# make test        the fast tests
# make test-slow   the tests that train or compile something
# make test-exhaustive
#                  further cases beside the covering sets, for changes of what these test
# make test-parity the tests against PyTorch, transformers and others, which it installs
# make notebooks   write notebooks/*.ipynb from their texts, notebooks/*.py
# make site        build README.md and docs/ as a site in build/site, with mkdocs, which it installs
# make clean       remove the environment and what was built
#
# Each target sets up .venv from requirements.lock first, once per state of the lock.

SHELL := /bin/bash
# Modules are compiled by the first process that imports them, and by no other: importing JAX and
# what stands on it would take three times as long.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3.11 python3
PIP := .venv/bin/python -m pip --disable-pip-version-check --no-input
PYTEST := .venv/bin/python -m pytest -n 2 --dist worksteal --durations 20

.PHONY: train test test-slow test-exhaustive test-parity notebooks site clean

# Huge pages for large arrays: on a CPU a training step is about a fifth faster. Tests do
# not gain: their arrays are small.
train: export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
train: .venv/.installed
	.venv/bin/python -m experiments.train --config=configs/nmt_numbers.py \
	  --workdir=runs/nmt_numbers $(ARGS)

test: .venv/.installed
	$(PYTEST) -m "not slow" tests

# Files without such tests are not imported. pytest answers 5 when no test is marked slow, which is
# no failure.
test-slow: .venv/.installed
	$(PYTEST) -m "slow and not exhaustive" $$(grep -rlw --include='test_*.py' slow tests) || test $$? -eq 5

# Of those beside PyTorch each says that it is skipped, unless test-parity has installed it.
test-exhaustive: .venv/.installed
	$(PYTEST) -m exhaustive $$(grep -rlw --include='test_*.py' exhaustive tests)

notebooks: .venv/.installed
	.venv/bin/python notebooks/build.py

site: .venv/.docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict

test-parity: .venv/.parity
	$(PYTEST) -m "not exhaustive" tests/parity

.venv/.parity .venv/.docs: .venv/.%: requirements-%.lock .venv/.installed
	$(PIP) install -qq --no-compile --no-deps -r $<
	@touch $@

# Candidates are run, not just found: a version manager's shim may be on the path for an
# interpreter that isn't installed.
.venv/.installed: requirements.lock setup.py pyproject.toml
	@set -e; for python in $(PYTHON); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    "$$python" -m venv .venv; break; \
	  fi; \
	done; \
	if ! test -x .venv/bin/python; then \
	  echo "jtx needs Python 3.11 or newer; tried: $(PYTHON)" \
	    "(set PYTHON=/path/to/python)" >&2; \
	  exit 1; \
	fi
	$(PIP) install -qq --no-compile --no-deps -r requirements.lock
	$(PIP) install -qq --no-deps -e .
	@touch $@

clean:
	rm -rf .venv build dist jtx.egg-info
