SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Modules under test that import Karpenter need a newer Go than the product does.
NEWER_GO := go1.27.3
NEWER_MODULES := test/crds test/peers
OTHER_MODULES := test/oracle test/tools/controllergen test/chart test/tools/image
MODULES := $(wildcard $(addsuffix /go.mod,$(OTHER_MODULES) $(NEWER_MODULES)))
# $(call toolchain,DIR) is what selects the Go of a nested module.
toolchain = $(if $(filter $(1),$(NEWER_MODULES)),GOTOOLCHAIN=$(NEWER_GO))

WORK ?= diverse
N ?=
TRACE ?=
BENCH ?= .
FUZZTIME ?= 30s
FUZZ_PROBLEMS ?= 10000
# In a variable, since the commas would part the arguments of a make function.
ENGINES ?= dovetail,karpenter

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: run
run: ## start a control plane, a simulated cloud and Dovetail here, and show nodes appear for examples/quickstart, or for ARGS="file folder ..."
	@go run ./cmd/dovetail-try $(ARGS)

.PHONY: up
up: ## start a control plane without Dovetail, ARGS="--nodes 3 --apply folder"; make down stops it
	@go run ./cmd/dovetail-cluster up $(ARGS)

.PHONY: down
down: ## stop the control plane that make up started
	@go run ./cmd/dovetail-cluster down

.PHONY: test
test: test-unit test-modules e2e chart-test ## run all tests: unit tests, fuzz seeds, CRDs, oracle, peers, end to end, the chart

.PHONY: test-unit
test-unit: ## run the unit tests and fuzz seeds of the product
	@echo "== unit tests and fuzz seeds"
	@go test $$(go list ./... | grep -vE '/engine/policy|/test/(cluster|e2e)|/cmd/dovetail-cluster')
	@echo "== unit tests of policies, which hold them to time limits: one package at a time"
	@go test -p 1 ./engine/policy/...

.PHONY: scenarios
scenarios: ## run all scenarios and count those that hold; FILES="..." selects
	@go run ./cmd/dovetail simulate scenario $(or $(FILES),test/scenarios test/scenarios/policy test/scenarios/life)

.PHONY: test-modules
test-modules: ## run the tests against Kubernetes' and Karpenter's own code
	@failed=0; $(foreach m,$(filter-out test/chart,$(patsubst %/go.mod,%,$(MODULES))),echo "== $(m)"; (cd $(m) && $(call toolchain,$(m)) go test -timeout 30m $(if $(filter test/peers,$(m)),-short) ./...) || failed=1;) exit $$failed

.PHONY: controlplane
controlplane: ## build the control plane of the end-to-end tests and make run; cached, 8 minutes at first
	@go run ./cmd/dovetail-try -prepare

.PHONY: e2e
e2e: controlplane ## run the end-to-end tests on a real control plane; RUN=regexp selects
	@echo "== end to end"
	@go test -p 1 -parallel 8 -timeout 30m $(if $(RUN),-run '$(RUN)') ./test/cluster/... ./cmd/dovetail-cluster ./test/e2e/...

.PHONY: chart-test
chart-test: controlplane ## install, use, upgrade, migrate and uninstall the chart on a real control plane; RUN=regexp selects
	@echo "== chart"
	@cd test/chart && go test -timeout 30m $(if $(RUN),-run '$(RUN)') ./...

.PHONY: chart-lint
chart-lint: ## helm lint
	@echo "== helm lint"
	@cd test/chart && go test -run '^TestLint$$' .

.PHONY: chaos
chaos: controlplane ## kill the controller KILLS=200 times under load, and count what is left over
	@KILLS=$(or $(KILLS),200) go test -count=1 -v -timeout 60m -run '^TestChaos$$' ./test/e2e | tee /dev/stderr | grep -E '^(kills=|--- FAIL)' | sort -r | awk '{ print; if (/FAIL/) bad = 1 } END { exit bad || NR == 0 }'

.PHONY: verify
verify: generated fmt-check vet imports lint chart-lint ## check generated files, format, vet, import rules, lint and the chart

.PHONY: generate
generate: ## make generated files anew: deep copies, CRDs, schemas
	@test/tools/generate

.PHONY: crds
crds: generate ## same as generate, and list the CRDs
	@ls engine/api/crds/*.yaml

.PHONY: generated
generated: ## fail if a generated file is out of date
	@test/tools/generated

.PHONY: fmt
fmt: ## format the Go files
	@git ls-files --cached --others --exclude-standard '*.go' | xargs gofmt -w

.PHONY: fmt-check
fmt-check: ## fail if a Go file is not formatted
	@echo "== gofmt"
	@unformatted=$$(git ls-files --cached --others --exclude-standard '*.go' | xargs gofmt -l); \
	if [[ -n $$unformatted ]]; then echo "not formatted, see make fmt:"; echo "$$unformatted"; exit 1; fi

.PHONY: vet
vet: ## run go vet on every module
	@echo "== go vet"
	@go vet ./...
	@$(foreach m,$(patsubst %/go.mod,%,$(MODULES)),echo "== go vet $(m)"; (cd $(m) && $(call toolchain,$(m)) go vet ./...);)

.PHONY: imports
imports: ## check the import rules of engine/imports_test.go
	@echo "== import rules"
	@go test -run 'TestImport' ./engine

.PHONY: lint
lint: ## run golangci-lint, built on first use
	@echo "== golangci-lint"
	@test/tools/lint/run run ./...

.PHONY: build
build: ## build bin/dovetail
	@go build -trimpath -o bin/dovetail ./cmd/dovetail

.PHONY: image
image: ## build the container image for amd64 and arm64 below dist, without a container engine, and test it
	@cd test/tools/image && go run . -source $(CURDIR) -out $(CURDIR)/dist
	@cd test/tools/image && go test -count=1 -timeout 30m -run '^TestProduct$$' . -dist $(CURDIR)/dist

.PHONY: bench
bench: ## run the Go benchmarks, BENCH=regexp selects
	@go test -run '^$$' -bench '$(BENCH)' -benchmem ./engine/...

.PHONY: bench-peers
bench-peers: ## compare with Karpenter: WORK=diverse|uniform|openb|catalogue|growth [N=pods] [TRACE=file]
	@cd test/peers && GOTOOLCHAIN=$(NEWER_GO) go run . -work $(WORK) $(if $(N),-n $(N)) $(if $(TRACE),-trace $(abspath $(TRACE)))

.PHONY: bench-consolidation
bench-consolidation: ## compare with Karpenter how nodes are taken away: NODES=500|2000 [PODS=n] [POOLS=n] [ENGINE=dovetail|karpenter] [THINK=30m per engine] [PROFILE=file]
	@cd test/peers && GOTOOLCHAIN=$(NEWER_GO) go run . -work consolidation -nodes $(or $(NODES),500) -n $(or $(PODS),0) -pools $(or $(POOLS),5) \
		-engine $(or $(ENGINE),both) -think $(or $(THINK),30m) $(if $(PROFILE),-cpuprofile $(abspath $(PROFILE)))

.PHONY: bench-e2e
bench-e2e: controlplane ## compare with Karpenter on one control plane: PODS=1000|5000 [RUNS=n] [ENGINE=dovetail|karpenter]
	@go run ./test/bench -pods $(or $(PODS),1000) -runs $(or $(RUNS),1) -engines $(or $(ENGINE),$(ENGINES))

.PHONY: bench-steady
bench-steady: controlplane ## compare CPU and memory while nothing happens, PODS=5000 on about 500 nodes
	@go run ./test/bench -pods $(or $(PODS),5000) -cpus 8 -steady 60s -engines $(or $(ENGINE),$(ENGINES))

.PHONY: bench-policy
bench-policy: ## time policies in Rego and Wasm on 850 offerings
	@{ go run ./engine/policy/rego/internal/measure && go run ./engine/policy/wasm/internal/measure; } | \
	awk '{ delete f; for (i = 1; i <= NF; i++) { split($$i, kv, "="); f[kv[1]] = kv[2] } } \
	f["rules"] == "integer" { rego = f["ms"]; answer = f["answer"] } \
	f["runtime"] ~ /^wasm/ { n++; x = rego / f["ms"]; $$0 = $$0 sprintf(" faster_than_rego=%.0fx", x); \
	if (f["answer"] != answer) { print f["runtime"] ": the answer is not that of Rego" > "/dev/stderr"; bad = 1 }; if (x < 30) bad = 1 } \
	{ print } END { exit bad || n < 2 }'

.PHONY: hostile
hostile: ## run hostile policies in Rego and Wasm, and say how many are contained
	@{ go run ./engine/policy/rego/internal/contain; go run ./engine/policy/wasm/internal/contain; } | \
	awk '!/^guests=/ { print; next } \
	{ for (i = 1; i <= NF; i++) { split($$i, f, "="); v[f[1]] = f[2] + 0 }; guests += v["guests"]; contained += v["contained"]; \
	if (v["worst_overrun"] > worst) worst = v["worst_overrun"] } \
	END { printf "guests=%d contained=%d worst_overrun=%.2fx\n", guests, contained, worst; exit guests == 0 || contained < guests }'

.PHONY: oracle
oracle: ## let kube-scheduler judge the plans of N generated problems
	@cd test/oracle && go run . $(if $(N),-n $(N))

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME=30s each, and the oracle on FUZZ_PROBLEMS=10000
	@test/tools/fuzz $(FUZZTIME)
	@echo "== oracle on $(FUZZ_PROBLEMS) problems"
	@cd test/oracle && go run . -n $(FUZZ_PROBLEMS) -seed 1000000
