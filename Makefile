# `make` alone lists the targets. `make run` and `make test` do all their own set-up.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

TOOL := go tool -modfile=tools/go.mod
# The packages to test and further flags of go test: make test PKG=./internal/queue ARGS='-run LeaseTakenOver -v'
PKG ?= ./...
ARGS ?=
# For .ci/run: the directory of reports about tests that were run again. If it is set, failed tests are run again, at most twice, unless more than
# five have failed. A crash, a data race and a goroutine that was left still fail the run.
RERUNS ?=
RERUN = $(if $(RERUNS),--rerun-fails=2 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
	--rerun-fails-report='$(RERUNS)/$@' --jsonfile='$(RERUNS)/$@.json' --post-run-command='$(CURDIR)/build/reruns $(RERUNS)/$@.json')
# $(call gotest,PACKAGES,FLAGS) runs go test. $(call gotest_in,DIRECTORY,PACKAGES,FLAGS,COMMAND) does so in another module, as arguments of COMMAND.
GOTESTSUM = gotestsum --format pkgname-and-test-fails $(RERUN)
gotest = $(TOOL) $(GOTESTSUM) --packages='$(1)' -- $(2)
gotest_in = $(4) go tool -C $(1) -modfile=../tools/go.mod $(GOTESTSUM) --packages='$(2)' -- $(3)
# Vet runs with the linters: make check
GOTEST = $(call gotest,$(PKG),$(RACE) -vet=off -shuffle=on -parallel 4 -timeout 25m $(ARGS))
PGTEST := go run ./internal/pgtest/run
# The scenarios of internal/faults start servers of their own: they run once, and not at the same time as other tests
FAULTS_ELSEWHERE := $(if $(filter ./...,$(PKG)),QUEUED_FAULTS=off)
# A browser, for the tests that need one
CHROMIUM = $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
# For make bench: the flavour of PostgreSQL, what to measure, and the directory of the report; see bench/README.md
FLAVOUR ?= timescale
BENCH ?= suite
OUT ?= $(CURDIR)/bin/bench

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build and serve on 127.0.0.1:8080, with a private PostgreSQL unless QUEUED_DATABASE_URL is set
	@exec bin/queued serve

.PHONY: build
build: ## Build bin/queued, static
	@CGO_ENABLED=0 go build -trimpath -o bin/queued ./cmd/queued

.PHONY: test
test: test-plain test-timescale test-faults test-client test-bench $(if $(CHROMIUM),test-browser) ## Test on plain PostgreSQL, then on PostgreSQL 17 with TimescaleDB in a container

.PHONY: test-plain
test-plain: RACE = -race
# A program that is built with the race detector sleeps for a second before it ends, and the tests run hundreds of them
test-plain: export GORACE = atexit_sleep_ms=50
test-plain: ## Test on a plain PostgreSQL, private to the run
	@$(FAULTS_ELSEWHERE) $(PGTEST) -flavour plain -- $(GOTEST)

# Without packages that have no test on this server, and without internal/clienttest and internal/doctest, which see no difference: test-plain runs those.
# And without the race detector: the Go code is the same in both flavours, so test-plain finds its races. The detector takes a third of the CPU time of the tests.
DATABASE_PACKAGES = $(shell grep -rlE --include='*_test.go' '"github.com/queued/queued/internal/pgtest"|^package pgtest$$' cmd internal sql | \
	grep -vE "clienttest/|doctest/" | xargs -n 1 dirname | sort -u | sed 's|^|./|')
.PHONY: test-timescale
test-timescale: PKG := $(if $(filter ./...,$(PKG)),$(DATABASE_PACKAGES),$(PKG))
test-timescale: ## Test on PostgreSQL 17 with TimescaleDB, in a container
	@$(FAULTS_ELSEWHERE) $(PGTEST) -flavour timescale $(if $(CI),,-optional) -- $(GOTEST)

.PHONY: test-faults
test-faults: ## Kill, freeze, cut off and fail over real servers, each once or a few times
	@QUEUED_FAULTS=short $(call gotest,./internal/faults,-vet=off -count=1 -timeout 15m -parallel 4 $(ARGS))

.PHONY: faults
faults: ## The same for hours; QUEUED_FAULTS_ROUNDS=3 and ARGS='-run Frozen' for fewer
	@QUEUED_FAULTS=long go test -count=1 -timeout 6h -parallel 2 -v $(ARGS) ./internal/faults
	@QUEUED_FAULTS=long $(PGTEST) -flavour plain -- go test -count=1 -timeout 1h -run 'UnderKills|BrokenLimits' -v ./internal/clienttest ./internal/queue

# The suites that speak HTTP, through a gateway with as many cells behind it, one number after the other; ARGS=-short runs a selection
CELLS ?= 1 3
.PHONY: test-gateway
test-gateway: ## Test HTTP, the command line and the Go client through a gateway, in front of one cell and of three; CELLS=3 for three alone
	@for cells in $(CELLS); do $(PGTEST) -flavour plain -- go run ./internal/gatewaytest/run -cells $$cells $(ARGS); done

.PHONY: test-client
test-client: ## Test the module client/ without a server; internal/clienttest tests it with one
	@$(call gotest_in,client,./...,-race -vet=off -shuffle=on -timeout 10m $(ARGS))

.PHONY: test-bench
test-bench: ## Test the module bench/, on a plain PostgreSQL that is private to the run
	@$(call gotest_in,bench,./...,-vet=off -shuffle=on -parallel 4 -timeout 10m $(ARGS),$(PGTEST) -flavour plain --)

.PHONY: pictures
pictures: ## Take the pictures of docs/dashboard.md anew: needs Chromium
	@rm -rf docs/pictures
	@QUEUED_E2E_PICTURES=$(CURDIR)/docs/pictures $(MAKE) --no-print-directory test-browser ARGS='-run ^TestPicturesOfTheDocumentation$$$$'

.PHONY: test-browser
test-browser: ## Test the module e2e/ with a browser: needs Chromium (apt-get install chromium); make test leaves it out where there is none
	@$(call gotest_in,e2e,./...,-vet=off -count=1 -timeout 10m $(ARGS),$(PGTEST) -flavour plain --)

.PHONY: bench
bench: ## Measure queued, its lower bound and its peers, on FLAVOUR (timescale); BENCH='suite --rounds 3 …', BENCH='single …'
	@$(PGTEST) -flavour $(FLAVOUR) -durable -- go run -C bench ./cmd/queued-bench --out $(OUT) $(BENCH)

.PHONY: fuzz
fuzz: ## Fuzz each decoder for FUZZTIME (30s)
	@for package in ./client ./internal/cloudevents ./internal/egress ./internal/http ./internal/match ./internal/schedule; do for target in $$(grep -ho '^func Fuzz[A-Za-z]*' $$package/*_test.go | cut -c6-); do \
		go test -C $$package -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZTIME),30s); done; done

# What the program is built for. Systems differ in what compiles, architectures do not, so check reads the code once for each system that the tests do
# not run on, tests included.
TARGETS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
CHECKED_TARGETS := darwin/arm64 windows/amd64

.PHONY: builds
builds: ## Build for every system and architecture, and keep nothing
	@for target in $(TARGETS); do CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} go build -o /dev/null ./cmd/queued || \
		{ echo "$$target: the build has failed"; exit 1; }; done

# All modules at once, as a workspace, so that what they share is read once
LINT = lint=$$($(TOOL) -n golangci-lint); work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; export GOWORK=$$work/go.work; \
	go work init . bench client e2e; $$lint run ./... ./bench/... ./client/... ./e2e/...

.PHONY: check
check: ## Lint, formatting, modules, functions that nothing calls, types on other systems, alerts (with promtool): what CI runs beside the tests
	@$(LINT)
	@$(TOOL) golangci-lint fmt --diff
	@go mod tidy -diff
	@cd bench && go mod tidy -diff
	@cd e2e && go mod tidy -diff
	@cd client && go mod tidy -diff
	@go mod verify >/dev/null
	@deadcode=$$($(TOOL) -n deadcode); \
		uncalled=$$($$deadcode -test ./...); if [ -n "$$uncalled" ]; then echo "$$uncalled"; exit 1; fi; \
		for target in $(CHECKED_TARGETS); do CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} $$deadcode -test ./... >/dev/null || \
		{ echo "$$target: see above"; exit 1; }; done
	@if command -v promtool >/dev/null; then promtool check rules deploy/prometheus/alerts.yml >/dev/null && promtool test rules deploy/prometheus/alerts_test.yml >/dev/null || \
		{ promtool test rules deploy/prometheus/alerts_test.yml; exit 1; }; fi
	@for script in build/images build/reruns build/secrets build/smoke build/postgres/entrypoint build/postgres/healthcheck deploy/patroni/make-database .ci/run examples/worker.sh; do bash -n $$script; done

.PHONY: fmt
fmt: ## Format the code
	@$(TOOL) golangci-lint fmt

.PHONY: image
image: ## Build the images queued:dev and queued-postgres:17, and their base image where no registry can be reached
	@build/images

.PHONY: secrets
secrets: ## Write random keys for docker-compose.yml into .env, unless it has them
	@build/secrets

.PHONY: smoke
smoke: ## Build the images, start docker-compose.yml, insert, claim and ack an event with curl, take it down
	@build/smoke

.PHONY: clean
clean: ## Remove bin/
	@rm -rf bin
