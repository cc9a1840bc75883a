# make demo      see what the library does            make docs      build the site into build/docs
# make check     the quick checks, after each edit    make bench     re-measure every speed claim
# make test      everything CI checks                 make format    let ruff rewrite the layout
# make sanitize  kernels under ASan and UBSan         make nightly   the checks that take long as well
# make fuzz      random inputs against plain torch        make release   check what a release needs, upload nothing
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
STAMP  := $(VENV)/.fewfold-installed
NATIVE := $(wildcard src/fewfold/_native/*/*.cpp src/fewfold/_native/*/*.h)
KERNEL_TESTS := tests/_native/test_wide_rows.py tests/_native/test_middle_rows.py tests/_native/test_direct.py \
  tests/expectation/test_binary_data.py tests/recommender/reading/test_text_blocks.py tests/maps/test_map_properties.py tests/maps/test_corners.py tests/maps/test_gold.py tests/optim \
  tests/sampling/test_proposals.py tests/losses/test_sampled.py tests/recommender/models/test_bag.py tests/recommender/ranking/test_topk.py \
  tests/embeddings/test_mix.py tests/embeddings/test_tied.py tests/losses/test_anchored.py \
  tests/structured/test_sequences.py tests/structured/test_trees.py tests/structured/test_assignments.py \
  tests/distributions/test_fast_product.py tests/distributions/test_integrals.py \
  tests/recommender/models/test_sparse_linear.py tests/recommender/models/test_als.py tests/recommender/models/test_session_knn.py
ASAN    = $(shell gcc -print-file-name=libasan.so) $(shell gcc -print-file-name=libstdc++.so)
SITE    = $(shell $(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

PARALLEL = $(MAKE) --no-print-directory -j 2 $(if $(filter output-sync,$(.FEATURES)),-O)

.PHONY: demo test check lint types browser tests tests-native tests-avx2 tests-generic tests-pure tests-nightly test-triton docs tables bench bench-quick sanitize fuzz branches nightly wheel versions pins release format clean
.DEFAULT_GOAL := demo

# The environment is made once; it is refreshed only when what it is made from has changed.
$(STAMP): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@test -x $(PY) || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing fewfold and its tools into $(VENV) (the first time takes a few minutes)"
	@$(PY) -m pip install -qq -c constraints.txt "scikit-build-core>=0.11" "nanobind>=2.12" cmake ninja
	@! command -v $(CXX) >/dev/null || export FEWFOLD_NATIVE=$${FEWFOLD_NATIVE:-1}; \
	  PATH="$(abspath $(BIN)):$$PATH" $(PY) -m pip install -qq -c constraints.txt \
	  --no-build-isolation -e ".[demo,test,docs,bench,lint]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/fewfold demo

# mypy and the stage without kernels take one processor each, so that they run side by side.
test: lint
	@$(PARALLEL) types tests-pure
	@$(MAKE) --no-print-directory tests-native

# About a minute: lint, types, and of each package the tests that take a moment.
check: lint types
	$(PY) -m pytest -n 2 --dist worksteal -q -m "not slow and not nightly" @tests/quick.txt

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/hadolint --ignore DL3008 deploy/Dockerfile
	$(BIN)/yamllint -s -d '{extends: default, rules: {document-start: disable, line-length: {max: 120}}}' deploy

types: $(STAMP)
	$(BIN)/mypy

tests: tests-native tests-pure

# Where it may, this installs the browser that the tests of the page need; without one they are skipped.
BROWSER = command -v chromium || command -v chromium-browser || command -v google-chrome
browser:
	@{ $(BROWSER); } >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { \
	    echo "installing Debian's chromium for the tests of the page"; \
	    { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null 2>&1; }; \
	} || echo "no Chromium, and it cannot be installed: the tests of the page are skipped"

# Groups of processes have both processors for themselves, as they wait for each other. Then the properties of every map
# are tested on both paths, and at last, in parallel, the kernels of older instruction sets.
tests-native: $(STAMP) browser
	@test "$$FEWFOLD_NATIVE" = 0 || $(PY) -c 'import fewfold._native.kernels' || { \
	  echo "the kernels were not built; to test the pure path alone: FEWFOLD_NATIVE=0 make test"; exit 1; }
	$(PY) -m pytest -q -m "not nightly" tests/distributed
	$(PY) -m pytest -n 2 --dist worksteal -q -m "not nightly" --ignore=tests/distributed
	@$(PARALLEL) tests-avx2 tests-generic

tests-avx2 tests-generic: $(STAMP)
	FEWFOLD_ISA=$(@:tests-%=%) $(PY) -m pytest -q -m "native and not nightly" $(KERNEL_TESTS)

# The examples and the tests of the package with the kernels disabled for the whole process. The gallery is left out: its
# programs use the public surface, as the examples do.
tests-pure: $(STAMP)
	FEWFOLD_NATIVE=0 $(PY) -m pytest -q -m "not slow and not nightly" -k "not gallery" \
	  src README.md docs tests/test_package.py

# Kernels for GPUs, run by Triton's interpreter; not in `test`, as Triton is 280 MB. At night with
# TRITON_TESTS="nightly or not nightly": all sizes, and every kernel compiled for two GPUs.
TRITON_TESTS ?= not nightly
TRITON = $(VENV)/.triton-installed
$(TRITON): $(STAMP)
	$(PY) -m pip install -qq -c constraints.txt triton
	@touch $@

test-triton: $(TRITON)
	TRITON_INTERPRET=1 $(PY) -m pytest -q -m "$(TRITON_TESTS)" tests/_triton

tests-nightly: $(STAMP) browser
	$(PY) -m pytest -n 2 --dist worksteal -q -m nightly
	FEWFOLD_KILLS=60 $(PY) -m pytest -q -k killed tests/cli/test_interrupted.py

docs: $(STAMP)
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

tables: $(STAMP)
	$(PY) docs/generate_api.py > docs/api.md.new && mv docs/api.md.new docs/api.md
	$(PY) -m tests.maps.transforms docs/transforms_table.md
	$(PY) -m tests.attention.transforms docs/transforms_attention.md
	$(PY) -m tests.distributions.transforms docs/transforms_distributions.md
	$(PY) -m tests.device docs/devices_table.md
	$(PY) -m experiments.evidence

bench: $(STAMP)
	$(PY) -m benchmarks

bench-quick: $(STAMP)
	$(PY) -m benchmarks --quick

# -S keeps the editable install out of the way, so that the sanitized copy is the one imported.
sanitize: $(STAMP)
	cmake -S . -B build/sanitize/cmake -DFEWFOLD_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DPython_EXECUTABLE=$(abspath $(PY)) -DCMAKE_INSTALL_PREFIX=$(abspath build/sanitize/site) >/dev/null
	cmake --build build/sanitize/cmake -j 2
	rm -rf build/sanitize/site && mkdir -p build/sanitize/site && cp -r src/fewfold build/sanitize/site/
	cmake --install build/sanitize/cmake >/dev/null
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 LD_PRELOAD="$(ASAN)" \
	  PYTHONPATH=$(abspath build/sanitize/site):$(SITE) \
	  $(PY) -S -m pytest -q -p no:cacheprovider -m native tests

# Random inputs for every branch of the kernels, bad arguments, model folders and logs: MINUTES=60 make fuzz
MINUTES ?= 10
fuzz: $(STAMP)
	$(PY) -m tests.fuzz --minutes $(MINUTES)
	$(PY) -m tests.fuzz.artifact --minutes 2
	$(PY) -m tests.fuzz.reading --minutes 2
	$(PY) -m tests.fuzz.bindings --minutes 2

# The branches of the kernels that no test takes.
branches: $(STAMP)
	$(PY) -m tests.branches

# What is too slow for every change, each part to its end, and a page of what moved: build/nightly/page.md
# STAGES="fuzz benchmarks" runs these alone, and HOUR=5 fuzzes for five minutes instead of an hour.
HOUR ?= 60
nightly: $(STAMP)
	$(PY) -m release.nightly --minutes $(HOUR) $(STAGES)

# The source distribution and from it the wheels, each tested in an environment without a compiler. Python 3.12 or later
# builds the one for the stable ABI, where it is installed.
JOBS ?= 2
wheel: $(STAMP)
	$(PY) -m release.wheels --jobs $(JOBS)

# The quick tests with the lowest and with the newest versions of all dependencies.
versions: $(STAMP)
	$(PY) -m release.versions --jobs $(JOBS)

# Newer versions of what is pinned or installed.
pins: $(STAMP)
	$(PY) -m release.pins

release: wheel
	$(PY) -m release.check

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
