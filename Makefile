# CALIBER: everything a developer runs. Each target sets up what it needs, says what it does, and does nothing
# that is already done. "make" alone lists the targets.

PYTHON  ?= python3
VENV    := .venv
PY      := $(VENV)/bin/python
STAMPS  := $(VENV)/.stamps
PIP     := $(PY) -m pip --disable-pip-version-check --quiet
# Two workers, each with a share of the files: more only fight over the cores and the disk of a small machine.
WORKERS ?= 2
PYTEST  := $(PY) -m pytest
# The seed of random tests, printed by each target that uses it. make test has the same one every time; make soak and
# make fuzz draw another each time. SEED=random draws one for any target, SEED=NUMBER runs that one again.
drawn   = $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
ifeq ($(origin SEED),undefined)
SEED    := 20260101
soak fuzz: SEED := $(drawn)
else ifeq ($(SEED),random)
override SEED := $(drawn)
endif
# Python's hashes decide the order of sets: they follow the seed too.
SEEDED   = CALIBER_SEED=$(SEED) PYTHONHASHSEED=$$(($(SEED) % 4294967296))
# make prove runs failed tests once more, alone: one that then passes is flaky. make test does no such thing: what is
# flaky there is mended.
PROVE    = $(SEEDED) $(PYTEST) --tier prove -q --hypothesis-seed=$(SEED)
# What keeps a run from waiting for ever when a worker dies, and shows where a test hangs before its timeout kills it.
WORKING := -p tests.support.files_to_workers -o faulthandler_timeout=590
SAY     := @printf '==> %s\n'
# Tests start hundreds of processes: without bytecode each compiles the package anew, and each worker every test.
unexport PYTHONDONTWRITEBYTECODE

NATIVE_SOURCES := CMakeLists.txt $(shell find csrc -type f \( -name '*.c' -o -name '*.h' \))

# What has a full scale beyond the one of make prove: every folder of tests except these.
UNSOAKED := bench data examples golden house native scenarios support
SOAKED   := $(filter-out $(UNSOAKED:%=tests/%/),$(sort $(dir $(wildcard tests/*/test_*.py))))

# How long make fuzz gives each target, and with what it builds them.
FUZZ_SECONDS ?= 10
CLANG        ?= clang

.DEFAULT_GOAL := help
.PHONY: always help setup demo test prove soak sanitize check-clang fuzz guard guard-update lint lint-python lint-c bench wheel gen clean
.DELETE_ON_ERROR:

help:
	@echo 'make setup        create $(VENV), build the kernels, install CALIBER with all extras'
	@echo 'make demo         remember this repository and show it'
	@echo 'make test         for each change, in minutes: every behaviour, each on the database that the seed draws'
	@echo '                  (SEED=random draws a seed), native kernels on two paths, the rules of the house'
	@echo 'make prove        for each night and before an issue is resolved, within the hour: these and the rest: every'
	@echo '                  database, the whole contract, kills, lost power, mutants, emulator, browser, pages, benchmarks'
	@echo 'make soak         for each week: the long proofs at full scale'
	@echo 'make sanitize     tests of kernels on an extension built with ASan and UBSan'
	@echo 'make fuzz         fuzz what takes bytes and offsets, FUZZ_SECONDS=$(FUZZ_SECONDS) a target'
	@echo 'make guard        instructions of the hot kernels against the committed counts; guard-update writes them'
	@echo 'make lint         style, types, layers, C warnings, generated files'
	@echo 'make bench        ratios against peers, goal beside figure; BENCH=--full for the large sizes'
	@echo 'make wheel        build, repair and smoke-test a wheel in dist/'
	@echo 'make gen          regenerate what headers, tables, knobs, the grammar and the handle determine'
	@echo 'make clean        remove everything that was built'

# --- setting up ----------------------------------------------------------------------------------------

$(STAMPS)/tools: tools/check_toolchain.sh
	@PYTHON=$(PYTHON) sh tools/check_toolchain.sh
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/venv: $(STAMPS)/tools
	$(SAY) 'creating $(VENV)'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# The kernels are compiled without build isolation: CMake's cache stays, and only changed files are compiled.
$(STAMPS)/installed: $(STAMPS)/venv pyproject.toml
	$(SAY) 'installing CALIBER with all extras, and what tests and lint need'
	@$(PIP) install --group build $$($(PY) tools/check_cmake.py)
	@$(PIP) install --no-build-isolation --editable '.[all]' --group test --group lint
	@touch $@ $(STAMPS)/native

# An editable install knows the modules there were when it was made: a new one makes it anew.
$(STAMPS)/modules: $(STAMPS)/installed always
	@find caliber -name '*.py' | LC_ALL=C sort >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(STAMPS)/native: $(STAMPS)/installed $(STAMPS)/modules $(NATIVE_SOURCES)
	$(SAY) 'compiling the kernels'
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

setup: $(STAMPS)/native

$(STAMPS)/bench: $(STAMPS)/native
	$(SAY) 'installing the peers to compare with'
	@$(PIP) install --group bench
	@touch $@

$(STAMPS)/wheel: $(STAMPS)/venv pyproject.toml
	$(SAY) 'installing what builds and repairs wheels'
	@$(PIP) install --group wheel
	@touch $@

# --- using ---------------------------------------------------------------------------------------------

demo: setup
	@$(VENV)/bin/caliber demo

test: setup
	$(SAY) 'running the tests of each change (SEED=$(SEED))'
	@$(SEEDED) $(PYTEST) $(WORKING) -n $(WORKERS) --dist loadfile -q --hypothesis-seed=$(SEED)

prove: setup
	$(SAY) 'running every test at its small scale (SEED=$(SEED))'
	@$(PROVE) $(WORKING) -n $(WORKERS) --dist loadfile || { test $$? = 1 && \
	  echo '==> failed tests once more, alone: one that passes now is flaky; mend it' && \
	  $(PROVE) --last-failed --last-failed-no-failures none -r fEp; }

soak: setup
	@if command -v $(CLANG) >/dev/null; then $(MAKE) --no-print-directory $(STAMPS)/fuzz; fi
	$(SAY) 'running the long proofs (SEED=$(SEED)); they record what they saw in docs/evidence/'
	@CALIBER_SOAK=1 $(SEEDED) $(PYTEST) -q --timeout 0 --hypothesis-seed=$(SEED) $(SOAKED)
	$(SAY) 'recorded in docs/evidence/:'
	@ls -1t docs/evidence 2>/dev/null || echo 'nothing: no proof wrote a record'

sanitize: setup
	$(SAY) 'running the tests of kernels under AddressSanitizer and UndefinedBehaviorSanitizer'
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) tests/support/kernels/sanitized.py --hypothesis-seed=$(SEED)

$(STAMPS)/fuzz: $(STAMPS)/installed
	$(SAY) 'installing atheris, which fuzzes what is Python'
	@$(PIP) install --group fuzz
	@touch $@

check-clang:
	@command -v $(CLANG) >/dev/null || { echo 'make fuzz needs clang with libFuzzer: apt-get install clang (Debian),' \
	  'dnf install clang compiler-rt (Fedora), brew install llvm and CLANG=its bin/clang (macOS)' >&2; exit 1; }

fuzz: check-clang setup $(STAMPS)/fuzz
	$(SAY) 'fuzzing each target for $(FUZZ_SECONDS) s (SEED=$(SEED)); what is found is kept in build/fuzz/'
	@CLANG=$(CLANG) CALIBER_FUZZ_SECONDS=$(FUZZ_SECONDS) $(SEEDED) $(PYTEST) -q --timeout 0 tests/fuzz/test_fuzzers.py

guard: setup
	$(SAY) 'counting the instructions of the hot kernels'
	@$(PY) tests/support/kernels/instructions.py

guard-update: setup
	$(SAY) 'writing the instruction counts that make prove compares with'
	@$(PY) tests/support/kernels/instructions.py --update

lint: lint-python lint-c
	$(SAY) 'clean'

lint-python: setup
	$(SAY) 'style (ruff)'
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	$(SAY) 'types (mypy --strict)'
	@$(PY) -m mypy
	$(SAY) 'lines of each room, within its budget'
	@$(PY) tools/budgets.py
	$(SAY) 'layers, links and lines of documents, functions that a call runs'
	@$(PYTEST) -q tests/house/test_layers.py tests/house/test_links.py tests/api/test_calls.py
	$(SAY) 'the tables of the grammar are up to date'
	@$(PY) tools/gen_tables.py --check
	$(SAY) 'the asynchronous face is that of the synchronous classes'
	@$(PY) tools/gen_aio.py --check
	$(SAY) 'the reference of the Python API is that of the docstrings'
	@$(PY) tools/gen_api.py --check
	$(SAY) 'the page of error messages is that of the code'
	@$(PY) tools/gen_errors.py --check
	$(SAY) 'wheels that would be built'
	@sh tools/check_wheels.sh $(PY)

lint-c: setup
	$(SAY) 'generated C is up to date'
	@$(PY) tools/gen_native.py --check
	@$(PY) tools/gen_unicode.py --check
	@$(PY) tools/fit_tokens.py --check
	@$(PY) tools/gen_words.py --check
	$(SAY) 'C in one style (clang-format), with every warning an error'
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) tools/lint_c.py build/lint

bench: $(STAMPS)/bench
	$(SAY) 'measuring against peers, one thread each (BENCH=... takes options: --quick, --full, -k WORD)'
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(PYTEST) bench -q -n0 --timeout=0 \
		-p no:cacheprovider --benchmark-quiet --plot=build/bench/topk.png $(BENCH)

wheel: $(STAMPS)/wheel
	$(SAY) 'building, repairing and smoke-testing a wheel'
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) wheels/build.py

gen: $(STAMPS)/installed
	@$(PY) tools/gen_native.py
	@$(PY) tools/gen_unicode.py
	@$(PY) tools/fit_tokens.py
	@$(PY) tools/gen_words.py
	@$(PY) tools/gen_tables.py
	@$(PY) tools/gen_config.py
	@$(PY) tools/gen_window.py
	@$(PY) tools/gen_aio.py
	@$(PY) tools/gen_errors.py
	@$(PY) tools/gen_api.py

clean:
	$(SAY) 'removing $(VENV) and everything built'
	@rm -rf $(VENV) build dist wheelhouse .pytest_cache .hypothesis .mypy_cache .ruff_cache .benchmarks
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
