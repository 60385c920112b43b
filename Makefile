# make help lists what each target does.
SHELL := /bin/bash
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
PY := .venv/bin/python
SANDBOXD := src/orchard/sandbox/bin/sandboxd
GO_SOURCES := $(shell find sandboxd -name '*.go' -not -name '*_test.go') sandboxd/go.mod

.PHONY: help sandboxd
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

sandboxd: $(SANDBOXD) ## build the daemon that runs inside every sandbox
$(SANDBOXD): $(GO_SOURCES)
	@mkdir -p $(@D)
	cd sandboxd && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o ../$@ .
