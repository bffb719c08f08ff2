# The two commands: `make demo` and `make test`. `make help` lists the rest.
#
# Everything runs from .venv, which uv fills from the committed uv.lock. uv itself is taken from the path, else pip puts it
# into .tools (a folder of this checkout), else apt brings pip first (as root), else we say what to do.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Images of CI set it: then each of the hundreds of processes of a run would compile its modules, and pytest rewrite each test file, anew.
unexport PYTHONDONTWRITEBYTECODE

UV_VERSION := 0.13.8
PYTHON ?= python3
BIN := .venv/bin
# What proves with real parts has the machine, as each lane of `make proofs` has.
ALONE := $(BIN)/python -m tests.support.alone
ONCE ?=
SINCE ?= origin/main

##@ Start here

.PHONY: demo
demo: .venv/.installed ## A broker group of Python replicas under load fails over twice while you watch (ONCE=1: by itself, one line of JSON)
	@$(BIN)/brokergroup demo $(if $(ONCE),--once,)

.PHONY: test
test: .venv/.installed-all ## The gate: set-up, static checks, every test without real parts; before each commit, and in CI on each push
	@$(BIN)/python tests/run.py $(ARGUMENTS)

.PHONY: proofs
proofs: .venv/.installed-all ## What needs real parts or more time, one lane at a time (LANE="fence sieve"; CHANGED=1: of what changed; SINCE=COMMIT)
	@$(BIN)/python tests/run.py --proofs $(if $(LANE),--lane $(LANE)) $(if $(CHANGED),--changed $(SINCE)) $(ARGUMENTS)

.PHONY: test-all
test-all: .venv/.installed-all ## The gate, then every proof
	@code=0; $(MAKE) test ARGUMENTS= || code=1; $(MAKE) proofs || code=1; exit $$code

.PHONY: test-nightly
test-nightly: .venv/.installed-all ## The gate, then every proof with its full numbers: all strikes, all walks, twelve times the draws, the real hour
	@code=0; $(MAKE) test ARGUMENTS= || code=1; $(MAKE) proofs ARGUMENTS="--nightly $(ARGUMENTS)" || code=1; exit $$code

##@ With real parts (Java, Maven and Go; installed by name where the machine allows it)

.PHONY: demo-real
demo-real: .venv/.installed-all ## The same demo with Java brokers 5.5.0, a NameServer and the Java producer (needs root for network namespaces)
	@$(BIN)/python tests/real/parts/install.py rocketmq >&2
	@$(ALONE) $(BIN)/brokergroup demo --implementation Java $(if $(ONCE),--once,)

.PHONY: parts
parts: .venv/.installed-all ## Install the real parts (kube-apiserver, etcd, kubectl, RocketMQ, Prometheus, helm) into the cache
	@$(BIN)/python tests/real/parts/install.py --all

.PHONY: parts-list
parts-list: .venv/.installed ## Which real parts are here, which are missing and why
	@$(BIN)/python tests/real/parts/install.py --list

.PHONY: test-differential
test-differential: .venv/.installed-all ## The same requests to real Java controllers (5.5.1, 5.5.0, 5.3.3) and to ours: every difference is on the list
	@$(ALONE) $(BIN)/python tests/differential/run.py $(ARGUMENTS)

.PHONY: attack
attack: .venv/.installed-all ## Floods, half frames, thousands of names and forged frames at every port of a running system: nothing changes, nothing is lost
	@$(BIN)/python tests/attack/run.py $(ARGUMENTS)

.PHONY: faulty-lives
faulty-lives: .venv/.installed-all ## 10,000 lives of a replica on a disk that fails, tears writes and loses power: nothing promised is lost
	@$(BIN)/python -m tests.replica.faulty_lives $(ARGUMENTS)

.PHONY: test-sandbox-parity
test-sandbox-parity: .venv/.installed-all ## The embedded API against a real kube-apiserver: the same requests, the same answers
	@$(BIN)/python tests/real/parts/install.py kube-apiserver etcd >&2
	@$(ALONE) $(BIN)/python tests/parity/run.py

.PHONY: test-interop
test-interop: .venv/.installed-all ## Java and Python replicas in one group fail over to each other; Java's clients and the Proxy read everything once
	@$(BIN)/python tests/real/parts/install.py rocketmq newest-rocketmq older-rocketmq rocketmq-proxy rocketmq-python-client >&2
	@$(ALONE) $(BIN)/python tests/interop/run.py $(ARGUMENTS)

.PHONY: test-fence
test-fence: .venv/.installed-all ## 30 freezes and 30 partitions of Java masters under load, and the same without the fences (needs root; ARGUMENTS="--freezes 3 ...")
	@$(BIN)/python tests/real/parts/install.py rocketmq netns >&2
	@$(ALONE) $(BIN)/python -m tests.fence.run $(ARGUMENTS)

.PHONY: test-switchover
test-switchover: .venv/.installed-all ## Three planes at a kube-apiserver: 30 switchovers, rolling restarts and drains of Java brokers under load (needs root; ARGUMENTS="--implementation Python")
	@$(BIN)/python tests/real/parts/install.py rocketmq netns kube-apiserver etcd >&2
	@$(ALONE) $(BIN)/python -m tests.switchover.run $(ARGUMENTS)

##@ On real nodes (root; containerd, kubelet and the rest installed by name): tests/node/README.md

.PHONY: node
node: .venv/.installed-all ## A real Kubernetes of two nodes with this checkout's image on them; stays up, prints its KUBECONFIG
	@$(ALONE) $(BIN)/python -m tests.node.cluster up

.PHONY: test-node
test-node: .venv/.installed-all ## Chart, groups, freezes, kills under load on two real nodes (ARGUMENTS=--all: drain, cut, upgrade, uninstall too)
	@$(ALONE) $(BIN)/python -m tests.node.run $(ARGUMENTS)

.PHONY: helm-demo
helm-demo: .venv/.installed-all ## Both charts by helm on two real nodes: seconds to the first message through the Proxy, uninstalled clean; one line of JSON
	@$(ALONE) $(BIN)/python -m tests.node.helm_demo

.PHONY: e2e
e2e: .venv/.installed-all ## Every deployment of docs/deployments.md on two real nodes: applied, used by Java's and gRPC clients, broken, deleted (ARGUMENTS="--only single")
	@$(ALONE) $(BIN)/python -m tests.node.e2e $(ARGUMENTS)

.PHONY: node-down
node-down: .venv/.installed-all ## End the two nodes, and see that nothing of the machine's settings stays changed
	@$(BIN)/python -m tests.node.cluster down

##@ Proofs and figures

.PHONY: test-page
test-page: .venv/.installed-all ## The live page in a real Chromium: a failover seen, keyboard, screen reader, phone, 10,000 members, attacks
	@$(BIN)/python tests/real/parts/install.py browser >&2
	@$(ALONE) $(BIN)/python -m tests.page.run $(ARGUMENTS)

.PHONY: test-observability
test-observability: .venv/.installed-all ## Every dashboard's queries and panels on a real Prometheus, every alert, the runbooks' commands; seven views of one failover agree
	@$(BIN)/python tests/real/parts/install.py java prometheus kube-apiserver >&2
	@$(ALONE) $(BIN)/python -m tests.observability.run

.PHONY: screenshots
screenshots: .venv/.installed-all ## test-page and test-observability; their pictures of page, dashboards and report go to docs/pictures
	@$(BIN)/python tests/real/parts/install.py browser java prometheus kube-apiserver >&2
	@$(BIN)/python -m sla_reports.class_archive --optional >&2
	@$(ALONE) $(BIN)/python -m tests.page.run --pictures docs/pictures
	@$(ALONE) $(BIN)/python -m tests.observability.run --pictures docs/pictures

.PHONY: test-sieve
test-sieve: .venv/.installed-all ## Every fault between operator and API at every place of every workload: the end is the same
	@$(BIN)/python tests/sieve/run.py $(ARGUMENTS)

.PHONY: simulate
simulate: .venv/.installed-all ## Three planes, scripted brokers and an unkind API in virtual time, by seeds, and twelve mutants that must be found
	@$(BIN)/python -m tests.simulate.run $(ARGUMENTS)

.PHONY: test-fuzz
test-fuzz: .venv/.installed-all ## Changes of a BrokerGroup drawn from the CRD's own schema: reached or explained, and back again
	@$(BIN)/python tests/fuzz/run.py $(ARGUMENTS)

.PHONY: sla-truth
sla-truth: .venv/.installed-all ## A planted month through a real Prometheus and every reader: the report finds what was planted
	@$(BIN)/python tests/real/parts/install.py java prometheus >&2
	@$(BIN)/python -m sla_reports.class_archive --optional >&2
	@$(ALONE) $(BIN)/python -m tests.sla.truth $(ARGUMENTS)

.PHONY: sla-draws
sla-draws: .venv/.installed-all ## 10,000 drawn histories whose sources lie, are late, doubled or away: the report adds up, its bounds contain the truth
	@$(BIN)/python -m tests.sla.planted.draws $(ARGUMENTS)

.PHONY: sla-real
sla-real: .venv/.installed-all ## An hour of the real system with failovers: the report agrees with the operator's records, counters and the clients' gaps
	@$(BIN)/python tests/real/parts/install.py java prometheus >&2
	@$(BIN)/python -m sla_reports.class_archive --optional >&2
	@$(ALONE) $(BIN)/python -m tests.sla.real_hour $(ARGUMENTS)

.PHONY: bench-sla
bench-sla: .venv/.installed-all ## Processor time and memory of the reports' reduction beside plain Spark SQL, DuckDB and polars: 10, 50, 500 million samples
	@$(UV) sync --quiet --frozen --inexact --all-extras --group bench --no-install-project >&2
	@$(BIN)/python tests/real/parts/install.py java >&2
	@$(BIN)/python -m sla_reports.class_archive --optional >&2
	@$(BIN)/python benchmarks/sla.py $(ARGUMENTS)

.PHONY: bench-controller
bench-controller: .venv/.installed-all ## What a heartbeat, a first list and a death cost the controller plane at 10, 1,000 and 10,000 groups, RocketMQ's controller beside it
	@$(BIN)/python tests/real/parts/install.py rocketmq >&2
	@$(ALONE) $(BIN)/python benchmarks/controller.py $(ARGUMENTS)

.PHONY: bench-reconcile
bench-reconcile: .venv/.installed-all ## What a pass costs: requests of a settled group and of a rolling update, processor time at 10, 100 and 1,000 groups
	@$(BIN)/python benchmarks/reconcile.py $(ARGUMENTS)

.PHONY: bench-memory
bench-memory: .venv/.installed-all ## How much memory the whole operator takes with 100, 300 and 1,000 groups, beside the chart's limit
	@$(BIN)/python benchmarks/operator_memory.py $(ARGUMENTS)

.PHONY: bench-replica
bench-replica: .venv/.installed-all ## Sends per second, latency, replication and memory of the Python replica, a Java broker's beside them
	@$(BIN)/python tests/real/parts/install.py rocketmq >&2
	@$(BIN)/python benchmarks/replica.py --java $(ARGUMENTS)

##@ While developing

.PHONY: setup
setup: .venv/.installed-all ## Fill .venv from uv.lock: the operator, its tests and Spark; with Java also the archive that makes Spark start fast
	@$(BIN)/python -m sla_reports.class_archive --optional >&2

.PHONY: format
format: .venv/.installed-all ## Format and fix what ruff can
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

.PHONY: lint
lint: .venv/.installed-all ## ruff, import-linter
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports

.PHONY: type
type: .venv/.installed-all ## mypy, strict
	@$(BIN)/mypy

.PHONY: docs
docs: .venv/.installed-all ## The site of docs/ in build/docs; a link, an anchor or a page of the menu that leads nowhere ends it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

.PHONY: test-core
test-core: .venv/.installed-all ## Only the state machine's traces and properties
	@$(BIN)/pytest -q tests/core

##@ Generated files

.PHONY: generate
generate: .venv/.installed-all ## Write crds/, dashboards/ and the chart's copies anew from their models
	@$(BIN)/python -m brokergroup_operator.api.definitions.generate
	@$(BIN)/python -m brokergroup_operator.observe.dashboards
	@$(BIN)/python charts/sync.py

##@ Release

.PHONY: dist
dist: .venv/.installed-all ## Wheel, chart, kubectl plugin as an archive, krew manifest, SBOM and checksums into dist/ (ARGUMENTS="--platform linux-arm64")
	@$(BIN)/python tests/real/parts/install.py helm >&2
	@$(BIN)/python .ci/dist.py --uv "$(UV)" --helm "$$($(BIN)/python -c 'from tests.real.parts.install import helm_program; print(helm_program())')" $(ARGUMENTS)

.PHONY: release
release: .venv/.installed-all ## The same, and images and charts into a registry, signed, with provenance (root; ARGUMENTS="--registry ghcr.io/OWNER --source URL --builder URI")
	@$(BIN)/python tests/real/parts/install.py node-packages qemu-arm64 helm crane cosign >&2
	@$(BIN)/python .ci/publish.py --uv "$(UV)" $(ARGUMENTS)

##@ Reports

.PHONY: sla-report
sla-report: .venv/.installed-all ## Availability and recovery times of the last demo run, by Spark, as a page and one line of JSON
	@$(BIN)/python tests/real/parts/install.py java >&2
	@$(BIN)/python -m sla_reports.class_archive --optional >&2
	@$(BIN)/brokergroup sla report --prometheus-export .demo/prometheus.json --incidents .demo/incidents.jsonl --out .demo/report

##@ Housekeeping

.PHONY: clean
clean: ## Remove what the targets made in this checkout (not the cache of real parts)
	rm -rf .venv .tools .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*##"} \
	  /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
	  /^[a-zA-Z_-]+:.*?##/ {printf "  \033[36m%-20s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Set-up writes to standard error only: the last line of standard output belongs to the target that measures.
UV = $$( command -v uv || echo .tools/uv/bin/uv )

.tools/uv-ready:
	@mkdir -p .tools
	@if command -v uv >/dev/null; then :; \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -m pip install --quiet --root-user-action=ignore --target .tools/uv uv==$(UV_VERSION) >&2; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  (apt-get update -qq && apt-get install -y -qq python3-pip) >&2 && \
	  $(PYTHON) -m pip install --quiet --root-user-action=ignore --target .tools/uv uv==$(UV_VERSION) >&2; \
	else \
	  echo "make: needs uv (https://docs.astral.sh/uv/), or pip for $(PYTHON), or root to install python3-pip: none is here" >&2; exit 1; \
	fi
	@touch $@

.venv/.installed: pyproject.toml uv.lock | .tools/uv-ready
	@$(UV) sync --quiet --frozen --inexact --no-default-groups --python $(PYTHON) >&2
	@touch $@

# Without --inexact: a package that uv.lock no longer has goes, with its pytest plugins.
.venv/.installed-all: pyproject.toml uv.lock | .tools/uv-ready
	@$(UV) sync --quiet --frozen --all-extras --group docs --python $(PYTHON) >&2
	@touch .venv/.installed $@
