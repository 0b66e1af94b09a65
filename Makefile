# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

.PHONY: setup demo test test-all check bench mutants interruptions reliability clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(RUN)/python examples/digits/demo.py

check: setup
	$(RUN)/ruff check src tests bench examples
	$(RUN)/ruff format --check src tests bench examples
	$(RUN)/mypy

test: check
	$(RUN)/python -m pytest -n 2 --dist loadgroup

# Every case of the long tables: first the sample, then what it leaves out.
test-all: test
	$(RUN)/python -m pytest -n 2 --dist loadgroup --rest

bench: setup
	$(RUN)/python bench/host_speed.py
	$(RUN)/python bench/memory.py
	$(RUN)/python bench/kernels.py
	$(RUN)/python bench/planning.py
	$(RUN)/python bench/transfers.py
	$(RUN)/python bench/zoo.py
	$(RUN)/python bench/steps.py
	$(RUN)/python bench/tuner.py

mutants: setup
	$(RUN)/python -m tests.mutants --json bench/results/mutants.json

interruptions: setup
	$(RUN)/python -m tests.interruptions --json bench/results/interruptions.json

# Everything that docs/reliability.md tells, from the beginning: an hour or two.
reliability: mutants interruptions
	$(RUN)/python bench/golden_programs.py
	$(RUN)/python bench/random_networks.py
	$(RUN)/python -m tests.bad_input --json bench/results/bad_input.json
	$(RUN)/python bench/tolerance.py
	$(RUN)/python bench/reliability.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
