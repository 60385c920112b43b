# `make help` lists what each target does.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
PYTEST := python -m pytest
SPREAD := -n 4 --dist loadfile
ON_PODS := $(PYTEST) -q tests/kubernetes --timeout 900
ON_CLUSTER = $(if $(KUBECONFIG),,@trap 'python -m tests.kubernetes.cluster down || exit 1' EXIT; python -m tests.kubernetes.cluster up &&)
SANDBOXD := src/orchard/sandbox/bin/sandboxd
GO_SOURCES := $(shell find sandboxd -name '*.go' -not -name '*_test.go') sandboxd/go.mod

.NOTPARALLEL: # a set-up comes before what needs it, also under -j
.PHONY: help demo test check lint unit contract system vm twins twins-all conformance bench cluster-programs cluster cluster-status cluster-down test-cluster conformance-cluster test-scaling test-torch test-vllm test-harness harness-zeroclaw images sandboxd setup-demo setup-test setup-cluster lock clean
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

demo: setup-demo sandboxd ## install what is missing, then run agents on real bugs, grade them, write demo/report.html (6 min at most)
	orchard demo --run demo

test: setup-test check system vm ## install what is missing, then all local lanes (15 min at most)

check: sandboxd ## the inner loop: lint and types beside unit and contract tests (2 min)
	@log=$$(mktemp); $(MAKE) lint >$$log 2>&1 & lint=$$!; $(MAKE) unit contract; tests=$$?; \
	wait $$lint; linted=$$?; cat $$log; rm $$log; exit $$((tests | linted))

lint: sandboxd ## format, lint, types, import rules, Go vet
	ruff format --check .
	ruff check .
	pyright
	lint-imports
	test -z "$$(gofmt -l sandboxd)" || { gofmt -l sandboxd; exit 1; }
	cd sandboxd && go vet ./...

unit: sandboxd ## unit tests and size budgets, Go tests of each package with the race detector
	$(PYTEST) -q tests/unit tests/arch $(SPREAD)
	cd sandboxd && go test -race ./internal/...

contract: sandboxd ## both sides of each seam against the real other side
	$(PYTEST) -q tests/contract -m "not slow" $(SPREAD)

system: sandboxd ## whole rollouts, kill -9 and resume, conformance, the snippets of README and docs, slow contract tests
	cd sandboxd && go test -race . # the whole daemon
	$(PYTEST) -q tests/contract -m slow $(SPREAD)
	$(PYTEST) -q tests/system -m "not vm and not twins and not twins_all"

vm: sandboxd ## limits, OOM, kill and life on pure cgroup v2, in a virtual machine under software emulation
	$(PYTEST) -q tests/system -m vm

twins: setup-test sandboxd ## break a backend on purpose, line by line; the conformance suite must notice each
	$(PYTEST) -q tests/system -m twins

twins-all: setup-test sandboxd ## each broken backend against all lines: its own must fail, and no other one (40 min)
	$(PYTEST) -q tests/system -m twins_all -n 2

conformance: setup-demo sandboxd ## how a sandbox must behave, line by line, on the local backend
	orchard conformance --backend local

bench: setup-test sandboxd ## measure against floors and peers; writes bench/results.json and docs/benchmarks.md
	uv pip install -q --python .venv/bin/python -c constraints.txt --group bench
	python -m bench

cluster-programs: setup-cluster ## build Kubernetes and what it needs from source, once, into the cache (15 min)
	@python -m tests.kubernetes.cluster programs

cluster: setup-cluster ## bring up a real two-node Kubernetes on this machine (root); prints its KUBECONFIG
	@python -m tests.kubernetes.cluster up

cluster-status: ## what of the cluster runs: parts, memory, nodes, pods, logs
	@python -m tests.kubernetes.cluster status

cluster-down: ## remove every trace of the cluster but the cache
	@python -m tests.kubernetes.cluster down

test-cluster: setup-cluster sandboxd ## the Kubernetes lane: on the cluster that KUBECONFIG names, else on one brought up for it
	$(ON_CLUSTER) $(ON_PODS) -m "not alone and not scaling and not suite" -n 4 --dist loadgroup --no-loadscope-reorder && $(ON_PODS) -m alone

conformance-cluster: setup-cluster sandboxd ## how a sandbox must behave, line by line, on Pods, straight and through a service; cluster as above
	$(ON_CLUSTER) $(ON_PODS) -m suite -n 3 --dist loadgroup

test-scaling: setup-cluster sandboxd ## the chart's scaler under load, with the real metrics-server (built once, in two minutes)
	$(ON_CLUSTER) $(PYTEST) -q tests/kubernetes/test_scaling.py

test-harness: setup-test sandboxd ## the real agent programs in sealed sandboxes, each installed once into the cache (15 min)
	$(PYTEST) -q tests/harness -n 2 --dist loadgroup --timeout 600

harness-zeroclaw: setup-demo ## build ZeroClaw by cargo, once, into the cache, for `test-harness` and for use (12 min)
	@python -m orchard.harness.zeroclaw_build

test-torch: setup-test sandboxd ## the embedded engine with torch (into the cache, 5 GB), against a plain forward pass (10 min at most)
	python="$$(python -m tests.models)" && PYTHONPATH=src OMP_NUM_THREADS=1 "$$python" -m pytest -q tests/torch

test-vllm: setup-test sandboxd ## the real vLLM (into the cache, 6 GB) through the gateway, against a plain forward pass (12 min at most)
	python="$$(python -m tests.models)" && PYTHONPATH=src "$$python" -m pytest -q tests/vllm

images: setup-demo sandboxd ## build the service's and the daemon's image without Docker; REGISTRY=host/path pushes them too
	@python -m deploy.images.build $(REGISTRY) $(if $(PLAIN_HTTP),--plain-http)

sandboxd: $(SANDBOXD) ## build the daemon that runs inside every sandbox
$(SANDBOXD): $(GO_SOURCES)
	@mkdir -p $(@D)
	cd sandboxd && CGO_ENABLED=0 go build -trimpath -tags nethttpomithttp2 -ldflags "-s -w -X main.version=$(VERSION)" -o ../$@ .

setup-demo:
	@scripts/setup demo
setup-test:
	@scripts/setup test
setup-cluster:
	@scripts/setup test
	@scripts/setup cluster

lock: ## refresh constraints.txt
	uv pip compile -q --upgrade --no-emit-index-url --no-annotate --no-header --group dev --group bench --group tools pyproject.toml -o constraints.txt
	uv pip compile -q --upgrade --no-emit-index-url --no-annotate --no-header -c constraints.txt tests/torch/requirements.in -o tests/torch/requirements.txt

clean: ## remove what the targets made in this folder (not the cache)
	rm -rf .venv build dist demo src/orchard/sandbox/bin .pytest_cache .ruff_cache
