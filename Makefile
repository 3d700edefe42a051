# Everything a newcomer or CI needs. `make demo` and `make test` do all their own set-up.
PYTHON ?= python3
# On a machine with its own PyTorch index: make demo TORCH="torch==2.13.0 --index-url URL"
TORCH ?= torch==2.13.0
# What is imported is compiled then: to compile all of PyTorch and the others takes 40 s.
INSTALL := pip install --quiet --disable-pip-version-check --no-compile
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CHECK_BIN := .venv-check/bin
CHECK_READY := .venv-check/.ready
COMPILED := $(VENV)/.compiled
BENCH_READY := $(VENV)/.bench-ready
SUPPLY_READY := $(VENV)/.supply-ready
DOCS_READY := .venv-docs/.ready
FRAMEWORKS_READY := .venv-frameworks/.ready
VISION_READY := .venv-vision/.ready
KUBERNETES_READY := $(VENV)/.kubernetes-ready
DEB_READY := .venv-deb/.ready
NODE_READY := .venv-node/.ready

.PHONY: test-kubernetes test-torch test-frameworks healthy-frameworks lock pin-base release sbom audit docs-site bench-hostile fuzz demo demo-rl demo-recovery test test-unit test-all python programs fetched replay incidents incidents-live incidents-victoria victoria healthy-days campaign mutate-rules test-gpu soak check format bench bench-doors bench-faults bench-nodes bench-rules bench-dashboards binaries chart dashboards preview wheel deb screenshots rules docs clean help

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## */\t/' | expand -t 14

python:
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "Python 3.10 or newer with venv is needed (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }

$(CHECK_READY): pyproject.toml lab/pyproject.toml | python
	$(PYTHON) -m venv .venv-check
	$(CHECK_BIN)/$(INSTALL) --upgrade pip
	$(CHECK_BIN)/$(INSTALL) -e '.[exporter,tools]' -e lab --group check
	@touch $@

$(READY): pyproject.toml lab/pyproject.toml | python
	@echo "Setting up .venv, once: 1.8 GB on disk, most of it PyTorch for the CPU; a minute or more" >&2
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(INSTALL) --upgrade pip
	$(BIN)/$(INSTALL) $(TORCH)   # first: Lightning would fetch a larger build
	$(BIN)/$(INSTALL) \
	  -e '.[exporter,tools,logs,compare,otlp,wandb,mlflow,tensorboard]' -e lab --group dev
	@touch $@

# Once, in the pauses of downloads: eight workers that begin at the same time would each do it.
$(COMPILED): $(READY)
	@$(BIN)/python -W ignore -c 'import torch._dynamo'
	@$(BIN)/pytest -n 0 -qq --collect-only >/dev/null || true  # the tests themselves say what is wrong
	@touch $@

$(FRAMEWORKS_READY): pyproject.toml lab/pyproject.toml | python
	@echo "Setting up .venv-frameworks, once: 2.5 GB on disk; two minutes or more" >&2
	$(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/$(INSTALL) --upgrade pip
	.venv-frameworks/bin/$(INSTALL) $(TORCH)
	.venv-frameworks/bin/$(INSTALL) -e '.[exporter,tools]' -e lab --group frameworks
	@touch $@

# A PyTorch of its own: the CPU build that the other environments have goes with no torchvision of PyPI's.
$(VISION_READY): pyproject.toml lab/pyproject.toml | python
	@echo "Setting up .venv-vision, once: 6 GB on disk, most of it CUDA, which is not used; three minutes or more" >&2
	$(PYTHON) -m venv .venv-vision
	.venv-vision/bin/$(INSTALL) --upgrade pip
	.venv-vision/bin/$(INSTALL) -e '.[exporter,tools]' -e lab --group vision
	@touch $@

$(DOCS_READY): pyproject.toml | python
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/$(INSTALL) --upgrade pip
	.venv-docs/bin/$(INSTALL) --group site
	@touch $@

$(BENCH_READY): $(READY)
	$(BIN)/$(INSTALL) --group bench
	@touch $@

$(SUPPLY_READY): $(READY)
	$(BIN)/$(INSTALL) --group supply
	@touch $@

$(DEB_READY): pyproject.toml lab/pyproject.toml | python
	$(PYTHON) -m venv .venv-deb
	.venv-deb/bin/$(INSTALL) --upgrade pip
	.venv-deb/bin/$(INSTALL) -e '.[exporter,tools]' -e lab --group deb
	@touch $@

$(NODE_READY): pyproject.toml | python
	$(PYTHON) -m venv .venv-node
	.venv-node/bin/$(INSTALL) --upgrade pip
	.venv-node/bin/$(INSTALL) --group node
	@touch $@

$(KUBERNETES_READY): $(READY)
	$(BIN)/$(INSTALL) --group kubernetes
	@touch $@

demo: programs   ## a real training job, five faults, every page as it arrives (KEEP=1 leaves it running)
	$(BIN)/tachograph-lab demo $(if $(KEEP),--keep)

demo-rl: programs   ## three that learn by reinforcement (TRL's GRPO): a reward that hangs, a slow rank, a dead engine; 8 minutes
	$(BIN)/tachograph-lab demo --rl

demo-recovery: $(READY)   ## a supervisor acts upon five faults of one training: time to recover, steps lost, the loss with it and without; 6 minutes
	$(BIN)/tachograph-lab demo --recovery

programs: $(READY)   ## Prometheus and Alertmanager for the demo: from the PATH, else this release's, into .tools/
	@$(BIN)/python -m tools.binaries >/dev/null

binaries: $(READY) fetched   ## Prometheus, Alertmanager and node_exporter, both generations, and Helm, into .tools/

fetched: $(CHECK_READY)  # an environment that is there long before .venv
	$(CHECK_BIN)/python -m tools.binaries bookworm
	-$(CHECK_BIN)/python -m tools.binaries sid
	-$(CHECK_BIN)/python -m tools.helm

victoria: binaries       ## VictoriaMetrics with vmagent and vmalert, into .tools/: 230 MB
	-$(BIN)/python -m tools.binaries victoria

check: $(CHECK_READY)  ## formatting, lint, types, floors, words: in a small environment of its own, without PyTorch
	$(CHECK_BIN)/ruff format --check .
	$(CHECK_BIN)/ruff check --quiet .
	$(CHECK_BIN)/mypy
	$(CHECK_BIN)/lint-imports --no-cache
	@$(CHECK_BIN)/python -m tools.words

# On two cores: six more workers fill the gaps of those that wait. Slow tests, and those of units, wait less.
PYTEST := $(BIN)/pytest -n 8
# Tests start hundreds of Python processes; each would compile our modules again: 0.6 s for an exporter.
unexport PYTHONDONTWRITEBYTECODE
UNIT := $(addprefix tests/,catalog client/core client/flops client/hello client/signals client/torch export/logs \
  export/traces grafana lab/fleet lab/scenario node/api node/ranks node/status_page rules runbooks silence tools top) \
  $(wildcard tests/client/test_*.py) $(filter-out tests/node/test_exporter%,$(wildcard tests/node/test_*.py)) \
  $(filter-out $(addprefix tests/node/gpu/test_,captures.py source% watch% worker.py),$(wildcard tests/node/gpu/test_*.py))

test:            ## all checks, and all tests but the slow ones: what CI runs
	@$(MAKE) --no-print-directory --jobs 3 check binaries $(COMPILED)
	$(PYTEST)

test-all: check victoria $(COMPILED) $(KUBERNETES_READY) $(SUPPLY_READY) ## the slow ones, too: both generations of Prometheus, live replays, trainers, a browser
	$(PYTEST) -n 4 -m 'not hardware and not frameworks'

test-unit: $(READY)      ## a minute of tests without PyTorch, Prometheus and other programs
	$(PYTEST) -n 4 -m 'not slow and not torch and not e2e and not prometheus' $(UNIT)

test-torch: | python     ## the client's tests with another PyTorch, in .venv-torch (5 GB): make test-torch TORCH=torch==2.4.1
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/$(INSTALL) $(TORCH) numpy
	.venv-torch/bin/$(INSTALL) \
	  -e '.[exporter,tools]' -e lab pytest pytest-timeout pytest-xdist
	.venv-torch/bin/pytest -n 0 -m 'not hardware' tests/client/torch

# What a command says of itself at its end, `tachograph auto` does not.
FRAMEWORKS = -n 2 -m 'frameworks and not slow' $(if $(filter auto,$(DOOR)),-k 'not summary')
test-frameworks healthy-frameworks: export TRAININGS_DOOR = $(DOOR)
test-frameworks: binaries $(FRAMEWORKS_READY) $(VISION_READY) ## trainings by other people's frameworks, in two environments of their own (9 GB, Python 3.11); DOOR=auto: by environment alone
	.venv-vision/bin/pytest $(FRAMEWORKS) tests/frameworks/vision
	.venv-frameworks/bin/pytest $(FRAMEWORKS) tests/frameworks --ignore tests/frameworks/vision

healthy-frameworks: binaries $(FRAMEWORKS_READY) $(VISION_READY) ## 30 healthy trainings by them, to the end and 3 minutes past it: nobody is called (half an hour)
	.venv-frameworks/bin/pytest -n 0 -m frameworks tests/frameworks/test_healthy.py

# A hang, a straggler, a NaN, a death, a collective left out, a dead node, a stuck save, an evaluator, a healthy hour.
VICTORIA := 2 4 9 10 12 20c 27 28 19

replay: binaries         ## one incident in virtual time: make replay STORY=9
	$(BIN)/tachograph-lab replay $(STORY)

incidents: binaries      ## the incidents in virtual time: each must bring its pages and no other
	$(BIN)/tachograph-lab replay --all --jobs 2

incidents-live: binaries ## those that real time can show, against the real Prometheus and Alertmanager: three hours
	$(BIN)/tachograph-lab replay --all --live

incidents-victoria: victoria ## some of them, with VictoriaMetrics in Prometheus' place: an hour and a half
	$(BIN)/tachograph-lab replay --live --store victoria --jobs 4 $(VICTORIA)

healthy-days: binaries   ## 24 hours of healthy fleets of 2, 8 and 64 ranks, five seeds each, in virtual time: nothing is sent
	$(BIN)/tachograph-lab healthy --jobs 2

campaign: binaries       ## 200 random incidents in virtual time: who is named, against who it was
	$(BIN)/tachograph-lab campaign --count 200 --jobs 2 --seed 1

mutate-rules: binaries   ## rules broken one at a time: some test must notice
	$(BIN)/python -m tools.mutation

fuzz: $(READY)       ## ten minutes of whatever a rank, a file, a flag or another exporter may say
	TACHOGRAPH_FUZZ_SECONDS=600 $(BIN)/pytest -n 0 --timeout 0 tests/fuzz

test-kubernetes: $(READY) $(CHECK_READY)  ## supervise in pods, with a control plane of Kubernetes built from Debian's source (once, 15 minutes, 2 GB meanwhile)
	@$(CHECK_BIN)/python -m tools.binaries.control_plane
	$(BIN)/pytest -n 0 -m kubernetes

test-gpu: $(READY)   ## the real collector on this machine's driver; without one: "skipped: no GPU"
	@if $(BIN)/python -c 'import pynvml; pynvml.nvmlInit(); assert pynvml.nvmlDeviceGetCount()' 2>/dev/null; \
	  then $(BIN)/pytest -m hardware -s tests/hardware && $(BIN)/python bench/nvml_calls.py; else echo "skipped: no GPU"; fi

soak: $(READY)   ## half an hour (MINUTES=480) of one exporter under everything at once, and 100,000 collections: does anything grow? Needs root
	$(BIN)/python bench/soak.py --doc --minutes $(or $(MINUTES),30)
	$(BIN)/python tests/node/gpu/measure.py soak --collections 100000

bench: $(BENCH_READY)  ## client cost beside its peers, exporter cost for 8 GPUs and 8 ranks, GPU readings and loss spikes beside peers
	$(BIN)/python bench/client.py
	$(BIN)/python bench/waits.py
	$(BIN)/python bench/job_cost.py
	$(BIN)/python bench/run_cost.py
	$(BIN)/python bench/auto_cost.py
	$(BIN)/python bench/exporter.py
	$(BIN)/python bench/gpus.py
	$(BIN)/python bench/detectors.py
	$(BIN)/python bench/sketch.py
	$(BIN)/python bench/blackbox.py

bench-doors: $(READY)    ## what measuring waits adds to a step of five kinds of job, four ranks each: 20 minutes, 30 on a busy machine
	$(BIN)/python bench/doors_cost.py

bench-faults: $(BENCH_READY)   ## faults in real four-rank jobs against the real rules: three hours, writes docs/evidence/fault-bench.md
	$(BIN)/python bench/faults.py --doc

bench-hostile: $(READY)        ## what attacks on one node cost: needs root, 15 minutes, writes the table of docs/evidence/attacks.md
	$(BIN)/python bench/hostile.py --doc

bench-nodes: binaries    ## four nodes in network namespaces, two cells, and every part failing: needs root, 75 minutes, writes docs/evidence/nodes.md
	$(BIN)/python bench/nodes.py --doc

bench-rules: binaries    ## what the rules cost one Prometheus at 1,024 to 16,384 ranks: writes docs/evidence/rules-bench.md
	$(BIN)/python bench/rules.py --doc

bench-dashboards: binaries    ## what every query of every dashboard costs at 1,024 ranks: writes docs/evidence/dashboards-bench.md
	$(BIN)/python bench/dashboards.py --doc

rules: $(READY)        ## render prometheus/rules/ from prometheus/src/, its macros and parameters
	$(BIN)/python prometheus/build.py

dashboards: $(READY)   ## render grafana/dashboards/ from grafana/build.py
	$(BIN)/python grafana/build.py

chart: $(READY)   ## what the Helm chart takes from code, deploy/kubernetes/, its default rendering, and the version in all files
	$(BIN)/python -m tools.release.versions
	$(BIN)/python -m tools.chart

# The PATH's Node.js, or else one from PyPI.
preview: $(if $(shell command -v npm),,$(NODE_READY))  ## build the viewer of the dashboards, with the PATH's Node.js (20 or later) or one from PyPI
	cd grafana/preview && PATH="$$PATH:$(CURDIR)/.venv-node/bin" && \
	  npm ci --ignore-scripts --no-audit --no-fund && npm run check && npm run build

wheel: $(READY)  ## dist/tachograph-*.whl, with the viewer of the dashboards unless that cannot be built
	@$(MAKE) --no-print-directory preview || echo "a wheel without the viewer, so without \`tachograph dashboards\`" >&2
	rm -rf build  # or what an earlier build left goes in, too
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

deb: $(DEB_READY)    ## dist/tachograph_*.deb for Debian 12, 13 and Ubuntu 22.04, 24.04, in a small environment of its own, without PyTorch
	.venv-deb/bin/python -m tools.debian

screenshots: binaries preview ## play incidents 3 and 2 and write docs/img (needs Chromium): half an hour
	$(BIN)/python grafana/preview/screenshots.py incident-3 incident-2

docs: $(READY)   ## render what is made from the catalog, the tables, the rules and the import contracts
	$(BIN)/python -m tools.pages

docs-site: $(DOCS_READY)   ## the documents as a site with a search: dist/docs/site; every link is checked
	@.venv-docs/bin/python -m tools.site dist/docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict --config-file dist/docs/mkdocs.yml
	@echo "dist/docs/site/index.html"

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

lock: $(SUPPLY_READY)   ## what the image installs, pinned with hashes; UPGRADE=1 takes the newest versions
	$(LOCK) --extra exporter --extra tools --output-file exporter/requirements.lock pyproject.toml
	$(subst --universal --python-version 3.11,--python-version 3.10,$(LOCK)) --extra exporter --extra tools --output-file deploy/debian/python3.10.lock pyproject.toml
	sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml | $(LOCK) --output-file exporter/build.lock -

pin-base:        ## write the digest that the image's base has today (needs Docker and its registry)
	@tag=$$(sed -n 's/^ARG BASE=\([^@]*\).*/\1/p' exporter/Dockerfile) && \
	digest=$$(docker buildx imagetools inspect "$$tag" --format '{{.Manifest.Digest}}') && \
	sed -i "s|^ARG BASE=.*|ARG BASE=$$tag@$$digest|" exporter/Dockerfile && sed -n '/^ARG BASE/p' exporter/Dockerfile

sbom: $(SUPPLY_READY)   ## what the image's Python environment holds, as CycloneDX: dist/tachograph.cdx.json
	@mkdir -p dist
	@$(BIN)/python -m tools.release.sbom dist/tachograph.cdx.json

release: $(SUPPLY_READY) $(DOCS_READY)   ## all files of a release into dist/, built twice and compared (needs Node.js 20); TAG=1 tags the commit
	-@$(BIN)/python -m tools.helm >/dev/null
	@$(BIN)/python -m tools.release $(if $(TAG),--tag)

audit: $(SUPPLY_READY)  ## known vulnerabilities of what the image installs (asks pypi.org)
	@found=$$($(BIN)/pip-audit --strict --require-hashes --disable-pip --progress-spinner off \
	  -r exporter/requirements.lock 2>&1) && echo "$$found" || { case "$$found" in \
	  *"known vulnerabilit"*) echo "$$found";; \
	  *) echo "make audit: no answer about every dependency: $$(echo "$$found" | tail -n 1 | cut -c 1-200)";; \
	  esac >&2; exit 1; }

format: $(CHECK_READY) ## format and fix what can be fixed
	$(CHECK_BIN)/ruff format --quiet .
	$(CHECK_BIN)/ruff check --fix --quiet .

clean:           ## remove everything the targets above made
	rm -rf $(VENV) .venv-check .venv-deb .venv-docs .venv-node .venv-torch .venv-frameworks .venv-vision .tools .demo dist .pytest_cache .mypy_cache .ruff_cache bench/out grafana/preview/out grafana/preview/node_modules
