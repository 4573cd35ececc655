# Every target does its own set-up; the second time that takes no time.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh
PYTHON3 := $(shell command -v python3 2>/dev/null)
PY := .venv/bin/python
# Arguments for the program behind a target, for example: make talk ARGS="--help"
ARGS ?=
# What "make test" runs, each as test-SUITE, and where their reports go.
SUITES := unit kernels triton open frameworks browser deploy
REPORTS := .cache/tests
# With a report, skipped tests are left to the summary of all suites.
REPORTING = $(if $(REPORT),-rfExX --junit-xml=$(REPORT) $(REMEMBERING)) $(REPEATING)
# What failed is kept beside the report, so that nothing is repeated in place of a run that broke off.
REMEMBERING = --continue-on-collection-errors -o cache_dir=$(patsubst %.again,%,$(basename $(REPORT)))
# Not empty: a skipped suite, and a test that is skipped for a reason not in tests/skips.txt, are failures.
STRICT ?=
# Not empty: only the tests that failed last time, one at a time, until one fails again.
REPEAT ?=
REPEATING = $(if $(REPEAT),--last-failed --last-failed-no-failures none --maxfail 1)
# What to download or to export, for example: make fetch MODEL=parakeet-tdt-0.6b-v2
MODEL ?=
# What "make images" builds; empty: all but the image for GPUs.
IMAGE ?=
# Of the models that a server is started with: open, tiny or gpu; empty: the program's default.
PROFILE ?=
WITH_PROFILE = $(if $(PROFILE),--profile $(PROFILE))

.PHONY: help setup setup-talk setup-export setup-frameworks setup-kernels setup-deploy \
    demo serve talk gateway test suites summary test-unit test-triton test-open test-frameworks test-browser test-kernels test-deploy test-cpus test-images test-parity fuzz house \
    check check-frameworks format eval simulate bench-stages gpu-check triton-check \
    bench-moves gateway-moves perf-analyzer soak chaos load observe fetch models export images release lock clean

help: ## Show this list
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make the environment .venv
	$(call need-python)
	@$(PYTHON3) scripts/setup

setup-talk:
	$(call need-python)
	@$(PYTHON3) scripts/setup --talk

setup-export: ## Make the environment .venv-export (training, exports, comparisons, GPU kernels)
	$(call need-python)
	@$(PYTHON3) scripts/setup --export

setup-frameworks: ## Make the environment .venv-frameworks (SDKs and frameworks that talk to Parley)
	$(call need-python)
	@$(PYTHON3) scripts/setup --frameworks

setup-kernels:
	$(call need-python)
	@$(PYTHON3) scripts/setup --kernels

setup-deploy:
	$(call need-python)
	@$(PYTHON3) scripts/setup --deploy

demo: setup ## Hold a recorded conversation with a server started for it, and show it live
	@$(call quiet-if-interrupted,.venv/bin/parley demo $(WITH_PROFILE) $(ARGS))

serve: setup ## Start the server and keep it up (PROFILE=NAME; ARGS="--help" for its options)
	@scripts/serve $(WITH_PROFILE) $(ARGS)

talk: setup-talk ## Talk to the server started by "make serve" with your microphone
	@.venv/bin/parley talk $(ARGS)

gateway: setup ## Let browsers and other clients in to the server started by "make serve"
	@$(call quiet-if-interrupted,.venv/bin/parley gateway $(ARGS))

test: setup ## Run all tests, those against the real server too; lists what was not run
	@rm -rf $(REPORTS); status=0; $(MAKE) --no-print-directory suites || status=1; \
	    $(MAKE) --no-print-directory summary || status=1; exit $$status

suites: setup
	@# Audio passes in real time, and a machine may stall for a second. What fails is repeated alone, once.
	@status=0; for suite in $(SUITES); do report=$(CURDIR)/$(REPORTS)/$$suite; \
	    $(MAKE) --no-print-directory test-$$suite REPORT=$$report.xml || \
	    $(MAKE) --no-print-directory test-$$suite REPORT=$$report.again.xml REPEAT=1 || status=1; \
	done; exit $$status

summary: setup
	@$(PY) tests/summary.py $(REPORTS) $(if $(STRICT),--strict $(SUITES))

test-unit: setup ## Run the tests that need no server
	@$(PYTHON3) scripts/setup --cluster
	@$(PYTHON3) scripts/setup --postgres
	@$(PYTHON3) scripts/setup --prometheus
	@$(PYTHON3) scripts/setup --telephones
	@# One process more than processors: some tests wait for programs of their own.
	@$(PY) -m pytest tests/unit tests/torch $(if $(REPEAT),,-n $$(($$(nproc) < 4 ? $$(nproc) + 1 : 4)) --dist worksteal) \
	    $(REPORTING) $(ARGS)

test-cpus: setup ## Run the numeric tests with the libraries' code for other processors
	@$(PY) tests/cpus.py $(ARGS)

test-kernels: setup-kernels ## Run the tests of GPU kernels, in the compiler's interpreter without a GPU
	@.venv-export/bin/python -m pytest -c tests/kernels/pytest.ini tests/kernels $(REPORTING) $(ARGS)

test-deploy: setup setup-deploy ## Render the Helm chart with many values, and check it against schemas and policies
	@$(PYTHON3) scripts/setup --prometheus
	@.venv-tools/bin/python -m pytest -c tests/deploy/pytest.ini tests/deploy $(REPORTING) $(ARGS)

test-triton: setup ## Run the tests against the real server
	@$(PYTHON3) scripts/setup --redis
	@# Two servers, as most of the time passes in real time.
	@$(PY) -m pytest tests/triton $(if $(REPEAT),,-n 2 --dist loadfile) $(REPORTING) $(ARGS)

test-open: setup ## Run the tests of the profile open with its real weights, which are fetched first
	@timeout 1200 scripts/fetch_models --profile open whisper-base
	@$(PY) -m pytest tests/open $(REPORTING) $(ARGS)

test-frameworks: setup setup-frameworks ## Run the tests with other makers' clients and frameworks
	@.venv-frameworks/bin/python -m pytest -c tests/frameworks/pytest.ini tests/frameworks $(REPORTING) $(ARGS)

test-browser: setup ## Run the tests of the gateway's page in a real Chromium
	@$(PYTHON3) scripts/setup --browser
	@$(PYTHON3) scripts/setup --redis
	@$(PY) -m pytest tests/browser $(REPORTING) $(ARGS)

test-images: setup ## Build the images with buildah, and hold calls through their containers (as root on Debian)
	@$(PYTHON3) scripts/setup --images
	@$(PYTHON3) scripts/setup --deploy
	@$(PYTHON3) scripts/setup --containers
	@$(PYTHON3) scripts/setup --prometheus
	@$(PY) -m pytest tests/images $(REPORTING) $(ARGS)

test-parity: setup-export ## Compare with NeMo, sherpa-onnx and chatterbox-tts themselves, on small models
	@status=0; for part in asr tts; do \
	    .venv-export/bin/python -m pytest -c tests/parity/$$part/pytest.ini tests/parity/$$part $(ARGS) || status=1; \
	done; exit $$status

house: setup ## Compare sizes, imports and names with their budgets (ARGS=--list names what is counted)
	@$(PY) tests/house.py $(ARGS)

fuzz: setup ## Send the gateway 100000 messages, others each time (MESSAGES=...)
	@PARLEY_FUZZ_MESSAGES=$(or $(MESSAGES),100000) $(PY) -m pytest tests/unit/gateway/fuzz --timeout 7200 $(ARGS)

check: setup ## Check format, lint, types, layers and budgets
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache --no-logo
	@$(PY) tests/house.py

check-frameworks: setup-frameworks ## Check the types of the plugins for Pipecat and LiveKit
	@.venv-frameworks/bin/mypy -p pipecat_parley -p livekit.plugins.parley

format: setup ## Put the sources into the standard format
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

eval: setup ## Measure the tiny models: word error rate and exact turns
	@status=0; $(PY) -m perf eval-recordings --model parakeet --plain || status=1; $(PY) build/training/eval_tiny_llm.py || status=1; exit $$status

soak: setup ## Hours of calls, cancels and kills; does anything grow, or get lost? (HOURS=2 or MINUTES=10; ARGS="--help")
	@$(PY) -m perf soak $(if $(HOURS),--hours $(HOURS)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

bench-moves: setup ## Kill, cut off and restart servers under calls, which go on elsewhere (needs root; ARGS="--help")
	$(call provision,--cluster)
	@$(PY) -m perf bench-moves $(ARGS)

gateway-moves: setup ## Kill the gateway of calls of several protocols, whose clients go on at another (ARGS="--help")
	@$(PYTHON3) scripts/setup --redis
	@$(PY) -m perf gateway-moves $(ARGS)

chaos: setup ## Cause one fault after the other under running calls, which check what it does (root; ARGS="--help")
	$(call provision,--cluster)
	@$(PY) -m perf chaos $(ARGS)

load: setup ## Let many callers talk to the server at once (USERS=8 MINUTES=5; ARGS="--help")
	@$(PY) -m perf load $(if $(USERS),--users $(USERS)) $(if $(MINUTES),--minutes $(MINUTES)) $(WITH_PROFILE) $(ARGS)

simulate: setup ## Let simulated callers talk to the server and judge it (PROFILE=NAME; ARGS="--help")
	@$(PY) -m perf simulate $(WITH_PROFILE) $(ARGS)

observe: setup ## Start Prometheus, and Phoenix for traces, beside the server and the gateway (ARGS="--help")
	$(call provision,--prometheus)
	@$(call quiet-if-interrupted,$(PY) -m perf observe $(ARGS))

fetch: setup ## Download weights (MODEL=NAME or PROFILE=NAME; without: list what there is)
	@scripts/fetch_models $(MODEL) $(WITH_PROFILE) $(ARGS)

models: setup ## List the models of a profile: licences, sizes, and whether their weights are here (PROFILE=NAME)
	@.venv/bin/parley models $(WITH_PROFILE) $(ARGS)

export: ## Export a NeMo or Chatterbox checkpoint to the files that the models load (MODEL=NAME)
	@test -n "$(MODEL)$(ARGS)" || { echo "error: name a checkpoint, for example: make $@ MODEL=NAME (make fetch lists them)" >&2; exit 2; }
	$(call need-python)
	@# Before the environment is made, which has more than 1 GB.
	@$(PYTHON3) build/known_entry.py "$(MODEL)" $(ARGS)
	@$(MAKE) --no-print-directory setup-export
	@.venv-export/bin/python build/export.py checkpoint $(MODEL) $(ARGS)

bench-stages: setup ## Measure stages and calls of Parley, and of any service (PROFILE=NAME; ARGS="--help")
	@$(PY) -m perf bench-stages $(WITH_PROFILE) $(ARGS)

gpu-check: setup ## Check the gpu profile's networks at their real sizes with random weights (ARGS="--help")
	@PYTHONPATH=clients $(PY) -m perf gpu-check $(ARGS)

triton-check: setup ## Check another Triton: what Parley relies on, and workarounds (ARGS="--triton /opt/tritonserver")
	@$(PY) -m perf triton-check $(ARGS)

perf-analyzer: setup ## Drive the models with Triton's perf_analyzer (MODEL=NAME or all; PROFILE=NAME; ARGS="--help")
	$(call provision,--perf-analyzer)
	@$(PY) -m perf perf-analyzer $(MODEL) $(WITH_PROFILE) $(ARGS)

release: setup ## Make a release: wheels, checksums and notes in dist/ (ARGS=--images: the images too)
	@$(PY) build/release.py $(ARGS)

images: ## Build the images with docker, podman or buildah (IMAGE="gateway worker-cpu"; ARGS="--help")
	$(call need-python)
	@build/images/build $(IMAGE) $(ARGS)

lock: ## Resolve the locks in build/requirements (ARGS=--upgrade for the newest versions)
	$(call need-python)
	@$(PYTHON3) scripts/setup --lock $(ARGS)

clean: ## Remove the environments, caches and logs
	rm -rf .venv .venv-export .venv-frameworks .venv-tools .venv-phoenix .venv-peers .venv-load .venv-kernels .venv-deploy .venv-images .venv-packing .cache .server \
	    .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/parity/*/.pytest_cache

# Ctrl-C is no error for make to report.
define quiet-if-interrupted
trap : INT; $(1); status=$$?; test $$status -eq 130 || exit $$status
endef

# What a program needs besides its environment; its help needs nothing.
provision = $(if $(filter -h --help,$(ARGS)),@:,@$(PYTHON3) scripts/setup $(1))

define need-python
	@test -n "$(PYTHON3)" || { echo "error: python3 is missing. On Debian and Ubuntu: \
	sudo apt-get install python3 python3-venv" >&2; exit 1; }
endef
