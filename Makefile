# Two commands do everything from a fresh clone: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := smollm2-135m-instruct
NATIVE := CMakeLists.txt $(wildcard src/peagle/native/*.cpp src/peagle/native/*.h)
# Whether bits agree must be seen with all threads; other tests run in two processes of one thread.
THREADED := tests/engine/test_lossless.py tests/evaluate/test_row_check.py \
	tests/model/test_invariance.py tests/model/test_torch_target.py
# The page is tested in a real browser, where there is one.
BROWSER := tests/serve/test_page_in_chromium.py

.PHONY: demo test check clean

demo: $(VENV)/installed
	$(BIN)/peagle pull $(MODEL)
	$(BIN)/peagle demo

test: $(VENV)/installed-dev check
	$(BIN)/peagle pull $(MODEL)
	PATH="$(abspath $(BIN)):$$PATH" scripts/check_native.sh
	PATH="$(abspath $(BIN)):$$PATH" scripts/check_page.sh $(BROWSER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
		$(addprefix --ignore=,$(THREADED) $(BROWSER))
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

# What is installed tells whether the native step was built; the message of CMake is not shown.
define install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable $(1)
	@ls $(VENV)/lib/python*/site-packages/peagle/native/_native*.so >/dev/null 2>&1 || \
		echo "No C++ compiler was found: peagle runs through torch, without its native CPU step."
	touch $(2)
endef

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt $(NATIVE)
	$(call install,.,$@)

# Whatever it needs to run is a part of it, so that the native step is built once.
$(VENV)/installed-dev: $(BIN)/python pyproject.toml constraints.txt $(NATIVE)
	$(call install,'.[dev]',$@ $(VENV)/installed)
