# Two commands do everything from a fresh clone: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := smollm2-135m-instruct
# Whether bits agree must be seen with all threads; other tests run in two processes of one thread.
THREADED := tests/engine/test_lossless.py tests/evaluate/test_row_check.py \
	tests/model/test_invariance.py tests/model/test_torch_target.py

.PHONY: demo test check clean

demo: $(VENV)/installed
	$(BIN)/peagle pull $(MODEL)
	$(BIN)/peagle demo

test: $(VENV)/installed-dev check
	$(BIN)/peagle pull $(MODEL)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
		$(addprefix --ignore=,$(THREADED))
	$(BIN)/python -m pytest $(THREADED)

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("peagle needs Python 3.11 or newer; run: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
