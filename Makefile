# The README's two commands are `make demo` and `make test`; both set up what they need.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PROOF_VENV ?= .venv-proof
# by file, since nodes are booted once a file; tests wait for engines as often as they compute
PYTEST_FLAGS ?= -n 3 --dist loadfile --no-loadscope-reorder --durations 15
PIP = -m pip --disable-pip-version-check install -qq --no-input
# small matrices: threads only get into each other's way
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
# hundreds of short commands would each compile the package anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo setup test lint types layers tests long proof lock clean

demo: $(VENV)/.run  ## an embedded node, and a deploy to it
	$(VENV)/bin/ddtree-ops deploy --host lab --yes

setup: $(VENV)/.dev

test: lint types layers tests  ## all that must hold before a change lands

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev
	$(VENV)/bin/mypy

layers: $(VENV)/.dev
	$(VENV)/bin/lint-imports --no-cache

tests: $(VENV)/.dev
	$(VENV)/bin/pytest -ra -m "not proof and not long" $(PYTEST_FLAGS)

long: $(VENV)/.dev  ## what is too long for every run
	$(VENV)/bin/pytest -ra -m long

proof: $(PROOF_VENV)/.proof  ## the tests that need torch and triton
	$(PROOF_VENV)/bin/pytest -ra -m proof $(PYTEST_FLAGS)

lock:  ## writes requirements/*.lock anew; needs uv, names no index
	$(PYTHON) -m venv $(VENV)-lock && $(VENV)-lock/bin/python $(PIP) uv
	$(VENV)-lock/bin/uv $(COMPILE) pyproject.toml requirements/build.in -o requirements/run.lock
	$(VENV)-lock/bin/uv $(COMPILE) pyproject.toml requirements/build.in --group dev \
	  -c requirements/run.lock -o requirements/dev.lock
COMPILE = pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

clean:
	rm -rf $(VENV) $(VENV)-lock $(PROOF_VENV)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "make: a python3 of 3.11 or newer is needed (make PYTHON=/path/to/python3)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements/run.lock pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) --require-hashes -r requirements/run.lock
	$(VENV)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.run
	$(VENV)/bin/python $(PIP) --require-hashes -r requirements/dev.lock
	touch $@

$(PROOF_VENV)/.proof: requirements/dev.lock requirements/proof.txt pyproject.toml
	test -x $(PROOF_VENV)/bin/python || $(PYTHON) -m venv $(PROOF_VENV)
	$(PROOF_VENV)/bin/python $(PIP) --require-hashes -r requirements/dev.lock
	$(PROOF_VENV)/bin/python $(PIP) -r requirements/proof.txt
	$(PROOF_VENV)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@
