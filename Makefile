# demo: from a clone to cited answers.   test: from a clone to passed tests.   `make help` lists all.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
DEMO_KB ?= demo-kb

.PHONY: help demo test lint notebooks eval bench clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv "$(VENV)"
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable ".[notebooks]" --group dev
	@touch $@

demo: $(VENV)/.installed  ## make the environment, ingest examples/handbook, answer five questions
	$(RUN) examples/demo.py "$(DEMO_KB)"

test: $(VENV)/.developing  ## make the environment, run all tests
	$(RUN) -m pytest

lint: $(VENV)/.developing  ## style, types and layers
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

notebooks: $(VENV)/.developing  ## run the notebooks and keep their outputs
	$(RUN) -m pytest --nbmake --overwrite notebooks

eval: $(VENV)/.developing  ## measure retrieval on the sets of KB_EVAL_DIR (by hand: it takes an hour)
	$(RUN) -m benchmarks.quality --output benchmarks/results/quality.md

bench: $(VENV)/.developing  ## measure searches beside their peers (BIG=1: a million segments, hours)
	$(RUN) -m pip install --quiet --disable-pip-version-check --group bench
	$(RUN) -m benchmarks.search $(if $(BIG),--sizes 200000 1000000 --output benchmarks/results/big.md)

clean:  ## remove the environment and the demo's data
	rm -rf "$(VENV)" "$(DEMO_KB)"
