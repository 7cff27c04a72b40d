# Two commands do all the set-up: `make demo` and `make test`. They need python3 (3.11+), venv and make.

PYTHON ?= python3
BIN := .venv/bin
PIP := python -m pip --quiet --disable-pip-version-check
# What is compiled when kalprox is installed: where it has changed, it is installed anew.
KERNEL := hatch_build.py $(wildcard kalprox/kernel/*.[ch]) kalprox/kernel/build.py
EXTRAS := dask,estimator,files,formula,jax,processes,report,river
# One BLAS thread a process: small products on a busy machine lose to one thread.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
# Compiled modules are kept, whatever the machine says: the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all pytest faults docs wheel-test attack bench uncertainty classes living large lint clean

demo: .venv/.run
	$(BIN)/kalprox demo

# Types and import contracts are checked beside the tests.
test: .venv/.dev
	@$(MAKE) --no-print-directory -j2 lint pytest

test-all: .venv/.spark
	@$(MAKE) --no-print-directory -j2 lint pytest SELECT='-m ""'

pytest: .venv/.dev
	$(BIN)/python -m pytest $(SELECT)

# Deliberate faults in copies of the package: tests/behaviour must catch each by itself. make faults ARGS="--from 5"
faults: .venv/.dev
	$(BIN)/python tests/faults.py $(ARGS)

# The site, into docs/_build/html: every example is run, and a warning is an error. What has not changed is not run again.
docs: .venv/.docs
	rm -rf docs/_build/html docs/reference/generated  # pages of what is no longer there; what was run is kept
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# The sdist, the wheel that is built from it, and the wheel in an environment of its own: by itself, then with extras.
WHEEL_EXTRAS ?= all
wheel-test: .venv/.dev
	rm -rf dist .wheel
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv .wheel
	.wheel/bin/$(PIP) install --no-compile -c constraints.txt dist/*.whl
	cd .wheel && bin/python -W error ../tests/smoke.py
	.wheel/bin/$(PIP) install --no-compile -c constraints.txt "$$(echo dist/*.whl)[$(WHEEL_EXTRAS)]" pytest
	cd .wheel && bin/python -W error ../tests/smoke.py --extras
	cd .wheel && bin/python -m pytest -q -c /dev/null --noconftest -p no:cacheprovider --doctest-modules --pyargs kalprox

# Kill, starve, poison and fuzz the command, and count what it survives: rewrites the table of docs/explanation/reliability.md.
attack: .venv/.dev
	$(BIN)/python -m tests.attack --page after $(ARGS)

# kalprox beside its peers, in an environment of their own. The main jobs before and after, in three minutes: make bench ARGS=--quick
bench: .bench/.run
	.bench/bin/python -m benchmarks $(ARGS)

# How often intervals cover, and the verdict on real data: rewrites docs/explanation/intervals.md. make uncertainty ARGS=--quick
uncertainty: .bench/.run
	.bench/bin/python -m benchmarks.uncertainty $(ARGS)

# Classes one row at a time, beside other libraries: rewrites docs/explanation/classes.md. make classes ARGS=--quick
classes: .bench/.run
	.bench/bin/python -m benchmarks.classes $(ARGS)

# Drift, changes, dictionaries, decisions, a process that stays on: rewrites docs/explanation/living.md. make living ARGS=--quick
living: .bench/.run
	.bench/bin/python -m benchmarks.living $(ARGS)

# Structures and networks, beside optax: rewrites docs/explanation/large.md. make large ARGS=--quick
large: .bench/.run
	.bench/bin/python -m benchmarks.large $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/house.py

clean:
	rm -rf .venv .bench .wheel dist docs/_build docs/gallery docs/reference/generated
	rm -f kalprox/kernel/kalprox.kernel.*
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kalprox needs Python 3.11 or later; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python pyproject.toml constraints.txt $(KERNEL)
	$(BIN)/$(PIP) install -c constraints.txt -e ".[jax,report]"
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt $(KERNEL)
	$(BIN)/$(PIP) install "pip>=25.1"  # the first that knows dependency groups
	$(BIN)/$(PIP) install -c constraints.txt --group dev -e ".[$(EXTRAS)]"
	touch $@ .venv/.run

.venv/.docs: .venv/.dev
	$(BIN)/$(PIP) install -c constraints.txt --group docs
	touch $@

# Large, and of no use without Java: the tests of Spark skip without it.
.venv/.spark: .venv/.dev
	if command -v java >/dev/null; then $(BIN)/$(PIP) install -c constraints.txt -e ".[spark]"; fi
	touch $@

# Without their dependencies: ISLP is there for a file of data and never imported, ondil pins an older NumPy than it needs.
.bench/.run: pyproject.toml constraints.txt benchmarks/requirements.txt $(KERNEL)
	$(PYTHON) -m venv .bench
	.bench/bin/$(PIP) install -c constraints.txt -e ".[estimator,files,jax,report]" -r benchmarks/requirements.txt
	.bench/bin/$(PIP) install --no-deps ISLP ondil
	touch $@
