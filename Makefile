# `make` lists the targets.
GO ?= go
LINT := $(GO) tool -modfile=go.tools.mod golangci-lint
# What the built-in kubectl says it is.
KUBECTL := k8s.io/component-base/version
LDFLAGS := -s -w -X $(KUBECTL).gitVersion=v1.36.3 -X $(KUBECTL).gitMajor=1 -X $(KUBECTL).gitMinor=36
# How long each fuzz target runs.
FUZZTIME ?= 30s
# Operations of the random model test; `make model OPS=1000000` is the long run.
OPS ?= 100000

.DEFAULT_GOAL := help
.PHONY: help build run test race model lint fmt fuzz bench microbench conformance kubectls definitions containers deps clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## compile everything; the binary is bin/setpoint
	$(GO) build ./...
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/setpoint ./cmd/setpoint

run: build ## serve the API on 127.0.0.1:6443
	bin/setpoint up

test: ## run the tests
	$(GO) test -timeout 20m ./...

race: ## run the tests, the long ones shortened, under the race detector
	$(GO) test -race -short -timeout 30m ./...

model: ## run the store against its naive model, OPS operations long
	$(GO) test -count=1 -timeout 60m ./test/model -ops $(OPS) -v

lint: ## check style and formatting
	$(LINT) run ./...
	cd test/bench && $(GO) tool -modfile=../../go.tools.mod golangci-lint run --config ../../.golangci.yml ./...
	cd test/differential && $(GO) tool -modfile=../../go.tools.mod golangci-lint run --config ../../.golangci.yml ./...
	cd test/kubectl && $(GO) tool -modfile=../../go.tools.mod golangci-lint run --config ../../.golangci.yml ./...
	cd test/extension && $(GO) tool -modfile=../../go.tools.mod golangci-lint run --config ../../.golangci.yml ./...
	cd test/e2e && $(GO) tool -modfile=../../go.tools.mod golangci-lint run --config ../../.golangci.yml ./...
	cd test/envtest && $(GO) tool -modfile=../../go.tools.mod golangci-lint run --config ../../.golangci.yml ./...
	cd setpointtest && $(GO) tool -modfile=../go.tools.mod golangci-lint run --config ../.golangci.yml ./...

fmt: ## format the code
	$(LINT) fmt ./...

fuzz: ## run every fuzz target for FUZZTIME
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do \
	  for name in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file"); do \
	    echo "$$name in $$(dirname "$$file")"; \
	    $(GO) test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; \
	  done; done

# A folder with what test/e2e/build.sh builds, which it does when none is given.
E2E ?=
# `make conformance GROUP=need-node` runs one list of specs of the suite and nothing else.
GROUP ?=

conformance: kubectls ## let stock kubectls judge, compare with a real kube-apiserver, which is built first, put a real extension server behind, and run the conformance suite
ifneq ($(GROUP),)
	cd test/e2e && $(GO) test -count=1 -timeout 180m -v . -bin '$(E2E)' \
	  $(if $(filter need-node,$(GROUP)),-run NeedANode -group '$(GROUP)',-run NeedNoNode -specs '$(GROUP)')
else
	$(GO) test -count=1 -timeout 20m -v ./test/conformance
	cd test/differential && $(GO) test -count=1 -timeout 60m -v ./...
	cd test/extension && $(GO) test -count=1 -timeout 20m ./...
	cd test/e2e && $(GO) test -count=1 -timeout 180m -v . -bin '$(E2E)'
endif

# What `make bench` is to measure, and how: `make bench MEASURE='-only Start'`; all, for hours, when nothing is given.
MEASURE ?=

bench: ## measure every scenario beside the peers, which are built first, and write the tables into docs/performance.md
	cd test/bench && $(GO) run ./measure -doc ../../docs/performance.md -plots ../../docs $(MEASURE)

microbench: ## measure parts, package by package
	$(GO) test -run '^$$' -bench . -benchtime 1s ./...

kubectls: ## build the stock kubectls that the tests run
	test/kubectl/build.sh bin

definitions: ## fetch the custom resource definitions of others that the tests install
	awk '{ print $$1 "@" $$2 }' test/crds/modules.txt | (cd / && xargs -n 1 $(GO) mod download)

containers: ## install what the tests run containers with, where this is Debian and we are root
	@if command -v containerd runc ip iptables busybox > /dev/null && test -e /usr/lib/cni/bridge -o -e /opt/cni/bin/bridge; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  apt-get update -q; apt-get install -y -q --no-install-recommends containerd runc containernetworking-plugins busybox-static iproute2 iptables; \
	else echo 'no containerd, runc, CNI plugins, iproute2, iptables or busybox: tests that need them skip'; fi

deps: ## fetch the modules that build, tests and tools need, what runs containers, and build the stock kubectls
	$(GO) mod download
	$(GO) mod download -modfile=go.tools.mod
	cd test/bench && $(GO) mod download
	cd test/differential && $(GO) mod download
	cd test/kubectl && $(GO) mod download && $(GO) mod download -modfile=go.1.35.mod
	cd test/extension && $(GO) mod download
	cd test/envtest && $(GO) mod download
	$(MAKE) kubectls definitions containers

clean: ## remove what the targets made
	rm -rf bin
	$(GO) clean -testcache
