# Two commands on a fresh machine: `make demo` and `make test`. CONTRIBUTING.md tells more.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Processes of the tests would compile all modules each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install lock dist demo test test-system test-smoke compiled-tests newest oldest compatibility soak soak-continuous \
  chaos lint format docs screenshots bench simulate world pyflink-suite flink-halves browser clean

install: $(STAMP)

PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-deps
UV := UV_HTTP_RETRIES=1 $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --no-deps

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "The locked PySpark needs Python 3.11 or newer, though the library runs with 3.10, too:" \
	       "make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -qqy python3-venv >/dev/null; } \
	  || { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@# No dependencies are looked up: the lock has all of them. It brings a Java, too, for machines without one. uv takes a
	@# third of pip's time. It does not read pip.conf: where that names the only index, pip installs the rest. Python compiles
	@# what is imported; most of it never is.
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.txt
	$(PIP) --no-compile --require-hashes --requirement .venv/uv.txt
	$(UV) --require-hashes --requirement requirements.lock \
	  || $(PIP) --no-compile --require-hashes --requirement requirements.lock
	$(PIP) --no-build-isolation --editable .
	@$(BIN)/python -m dagster_flinkpy.spark.java >/dev/null
	@# A first start of Spark: it leaves an archive of Java classes, with which later ones take half the time.
	@$(BIN)/flinkpy doctor >/dev/null || true
	@touch $@

# What `make install` installs, with all extras, for each Python and platform: the newest that pyproject.toml allows.
lock:
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --generate-hashes \
	  --no-emit-index-url --custom-compile-command 'make lock' --output-file requirements.lock pyproject.toml

# A wheel and a source distribution, in dist/. `make test` builds and tries them, too.
dist: install
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python -m pytest -q tests/test_distribution.py

demo: install
	$(BIN)/python -m assets.demo

# Files of tests side by side: many wait for processes. Each worker has servers of its own, but only one has Spark
# (tests/conftest.py). WORKERS=0: one process.
WORKERS ?= 4
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Folders whose tests need the whole library, and systems around it: all that are not the folder of a floor.
SYSTEM := $(addprefix tests/,assets benchmarks chaos docs e2e matrix pyflink simulation soak systems world)

# The tests of each floor, but for whole jobs, which are marked `system`.
test: install
	$(BIN)/python $(PYTEST) -m 'not system' $(addprefix --ignore=,$(SYSTEM))

# Dagster's pages in a browser, a Spark cluster whose processes are killed, the documentation as it is typed, the demo,
# benchmarks, a job that goes on, whole backfills, servers that are shared; whole jobs in a simulation, in a matrix, in a
# world that changes, and as PyFlink runs them; and what is marked `system` on the floors.
test-system: install browser
	$(BIN)/python $(PYTEST) -m system

# The short form of it: the tests of each folder that are marked `smoke`.
test-smoke: install browser
	$(BIN)/python $(PYTEST) -m smoke $(SYSTEM)

# Compiles the tests and what they import: the processes of the tests would do it side by side, each for itself.
compiled-tests: install
	@said=$$($(BIN)/python -m pytest -q --collect-only tests 2>&1) || { echo "$$said"; exit 1; }

# The tests with the newest, and with the oldest, of all that pyproject.toml allows. MiniStack asks for one botocore, with
# which boto3 would be new; it works with others. Older versions of Spark: `make compatibility`.
newest: RESOLUTION := highest
oldest: RESOLUTION := lowest-direct
oldest: OVERRIDE := 'botocore<1.37' 'pyspark>=4.3'
newest oldest: install browser
	$(PYTHON) -m venv --clear .cache/$@
	printf '%s\n' $(OVERRIDE) | $(BIN)/uv pip install --quiet --python .cache/$@/bin/python --resolution $(RESOLUTION) \
	  --requirement pyproject.toml --overrides - --all-extras --editable .
	PATH="$$PWD/.cache/$@/bin:$$PATH" .cache/$@/bin/python $(PYTEST)

# Programs and jobs with older versions of Spark, of both kinds of sessions. CI runs the programs that are marked `smoke`
# with some versions: see .ci/run.
SPARKS ?= 3.5 4.0 4.1 4.2
MODES ?= local classic
PROGRAMS ?=
JOBS ?= tests/assets/demo/test_runner.py tests/systems/test_job_spark.py tests/runtime/master/test_job_exchange.py \
  tests/runtime/slot tests/runtime/blocking/test_from_spark.py tests/runtime/blocking/test_transform_spark.py \
  tests/connectors/test_foreach_epoch.py tests/spark/test_versions.py
VERSIONS = $(addprefix compatibility-,$(SPARKS))
compatibility: $(VERSIONS)
$(VERSIONS): compatibility-%: install
	set -e; for mode in $(MODES); do echo "=== PySpark $*, $$mode"; \
	  FLINKPY_COMPATIBILITY=$$mode .ci/with-spark $* python -m pytest -q $(PROGRAMS) tests/pyflink/test_on_each_spark.py; \
	done
	$(if $(JOBS),.ci/with-spark $* python -m pytest -q $(JOBS))

# The property tests, the matrix of whole jobs and damaged savepoints of Flink, with $(SOAK) times the usual number of
# examples; the other commands run a tenth of the usual number. And all combinations of arguments (tests/pairs.py).
SOAK ?= 20
soak: install
	SOAK=$(SOAK) $(BIN)/python -m pytest --timeout 0 -m hypothesis tests
	SOAK=$(SOAK) $(BIN)/python -m pytest --timeout 0 tests/flink_savepoint/test_damaged.py
	SOAK=$(SOAK) $(BIN)/python -m pytest $$(grep -rl 'import pairs' tests --include='test_*.py')

# Processes of a Spark cluster are killed under a running job, and $(CHAOS) drivers (none of these in `make test-system`);
# $(LIVE) times what a job of live tasks needs: slots, executors, drivers, connections (SEED=... repeats a run). Then jobs
# into each kind of sink are killed: at each step, and at $(KILLS) random times. It writes its table into docs/reliability.md.
CHAOS ?= 20
LIVE ?= 300
KILLS ?= 50
chaos: install
	CHAOS=$(CHAOS) $(BIN)/python -m pytest --timeout 0 tests/chaos
	$(BIN)/python -m tests.chaos.live --kills $(LIVE) $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.sinks --random $(KILLS) --write docs/reliability.md

# One job for half an hour: memory, threads and files must not grow. `make test-system` runs 42 epochs of it. Then one whose tasks
# live, with a source that is faster than what follows, for ten minutes.
MINUTES ?= 30
LIVE_MINUTES ?= 10
soak-continuous: install
	$(BIN)/python -m tests.soak --minutes $(MINUTES)
	$(BIN)/python -m tests.soak --minutes $(LIVE_MINUTES) --live

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site, in site/. `make test-system` builds it, too, and fails at a warning.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The pictures of Dagster in the documentation, by a dagster dev and a browser: docs/img.
screenshots: install browser
	$(BIN)/python -m tests.e2e.screenshots

bench: install
	$(BIN)/python -m benchmarks

# Crashes, zombies and a store that fails, from 10,000 seeds: 8,000 with stand-ins for tasks, and 2,000 with live tasks, slots
# and a network between them. `make test-system` runs 40 and 12 of them. Then each rule is broken; `make test-system` breaks those
# of which a seed is known.
simulate: install
	$(BIN)/python -m tests.simulation --seeds 8000
	$(BIN)/python -m tests.simulation --live --seeds 2000
	$(BIN)/python -m tests.simulation --mutations --seeds 1000

# Others act on the systems of jobs: each act at every moment. `make test-system` plays a quarter of the acts, at one moment each.
world: install
	$(BIN)/python -m tests.world grid

# PyFlink's own examples and DataStream tests, run against this library; not a part of `make test-system`. PyFlink is installed
# without its jars into an environment of its own. FLINK=/path/to/flink takes the tests from there, instead of fetching them.
PYFLINK := .cache/pyflink-venv
pyflink-suite: install
	@test -x $(PYFLINK)/bin/pip || $(BIN)/python -m venv $(PYFLINK)
	$(PYFLINK)/bin/pip install --quiet --disable-pip-version-check --no-deps apache-flink==2.3.0 wheel
	@$(BIN)/python -c 'import site; print("import site;", "".join(f"site.addsitedir({p!r});" for p in site.getsitepackages()))' \
	  > "$$($(PYFLINK)/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_project.pth"
	$(PYFLINK)/bin/python -m tests.pyflink.suite $(if $(FLINK),--tests '$(FLINK)')

# Real Flink, in a mini cluster: programs that run half there and half here. It makes the fixtures that are missing, and
# resumes in Flink what was exported here. It takes about ten minutes.
FLINK_REAL := .cache/flink-venv
flink-halves: install
	@test -x $(FLINK_REAL)/bin/pip || $(BIN)/python -m venv $(FLINK_REAL)
	$(FLINK_REAL)/bin/pip install --quiet --disable-pip-version-check apache-flink==2.3.0
	$(FLINK_REAL)/bin/python tests/flink_savepoint/make_fixtures.py
	FLINKPY_PYFLINK=$(FLINK_REAL)/bin/python $(BIN)/python -m pytest --timeout 0 tests/flink_savepoint/test_halves.py

# The browser tests skip themselves, and say why, where it cannot be installed.
browser:
	@command -v chromium >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && apt-get update -qq && apt-get install -qqy --no-install-recommends chromium >/dev/null; } \
	  || echo "No chromium: the browser tests are skipped (apt-get install chromium)."

clean:
	rm -rf .venv .demo .cache .servers .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build site
