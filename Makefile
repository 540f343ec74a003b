# `make` alone lists the targets. `make run` and `make test` do all their own set-up.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

TOOL := go tool -modfile=tools/go.mod
# The packages to test and further flags of go test: make test-plain PKG=./internal/queue ARGS='-run LeaseTakenOver -v'
PKG ?= ./...
ARGS ?=
# $(call gotest,PACKAGES,FLAGS) runs go test. $(call gotest_in,DIRECTORY,PACKAGES,FLAGS,COMMAND) does so in another module, as arguments of COMMAND.
GOTESTSUM = gotestsum --format pkgname-and-test-fails
gotest = $(TOOL) $(GOTESTSUM) --packages='$(1)' -- $(2)
gotest_in = $(4) go tool -C $(1) -modfile=../tools/go.mod $(GOTESTSUM) --packages='$(2)' -- $(3)
# Vet runs with the linters: make check
GOTEST = $(call gotest,$(PKG),-vet=off -shuffle=on -parallel 4 -timeout 25m $(ARGS))
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
test: test-plain test-client test-timescale ## Test: every package on plain PostgreSQL, then with TimescaleDB what that can change (needs Docker)

.PHONY: test-all
test-all: test-race test-gateway test-faults $(if $(CHROMIUM),test-browser) ## After make test, the rest of what CI tests: races, gateways, faults, pages in a browser

NIGHTLY := nightly-plain nightly-timescale nightly-gateways nightly-rest nightly-faults nightly-year
.PHONY: test-nightly $(NIGHTLY)
test-nightly: $(NIGHTLY) ## Everything, for hours: all tests on both flavours and with the race detector, all gateways, fuzzing, all faults for long
$(NIGHTLY): export QUEUED_TEST_NIGHTLY = 1
# A program with the race detector sleeps for a second before it ends, and the tests run hundreds
nightly-plain: export GORACE = atexit_sleep_ms=50
nightly-plain: export CGO_ENABLED = 1
nightly-plain:
	@$(FAULTS_ELSEWHERE) $(PGTEST) -flavour plain -- $(call gotest,./...,-race -vet=off -shuffle=on -parallel 4 -timeout 2h $(ARGS))
nightly-timescale:
	@$(FAULTS_ELSEWHERE) $(PGTEST) -flavour timescale -- $(call gotest,./...,-vet=off -shuffle=on -parallel 4 -timeout 2h $(ARGS))
nightly-gateways:
	@$(MAKE) test-gateway CELLS='1 3' SHORT=
nightly-rest: image
	@$(MAKE) test-client test-bench test-browser fuzz smoke builds RACE=-race
nightly-faults: faults
nightly-year: year

.PHONY: test-plain
test-plain: ## Test on a plain PostgreSQL, private to the run
	@$(FAULTS_ELSEWHERE) $(PGTEST) -flavour plain -- $(GOTEST)

# The tests whose first line calls pgtest.EachFlavour, and the files with them
MARKED = $(shell grep -rl --include='*_test.go' 'pgtest.EachFlavour' cmd internal)
MARKED_TESTS = $(shell grep -h -B 1 'pgtest.EachFlavour' $(MARKED) | sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' | paste -sd '|')
.PHONY: test-timescale
test-timescale: PKG := $(if $(filter ./...,$(PKG)),$(sort $(patsubst %,./%,$(dir $(MARKED)))),$(PKG))
test-timescale: override ARGS := $(if $(findstring -run,$(ARGS)),,-run '^($(MARKED_TESTS))$$') $(ARGS)
test-timescale: ## Test on PostgreSQL 17 with TimescaleDB, in a container, what it can change
	@$(PGTEST) -flavour timescale $(if $(CI),,-optional) -- $(GOTEST)

# With the race detector: the packages that share memory between goroutines, and of the large ones, most of whose tests are of SQL, those tests whose
# names speak of what happens at the same time
RACE_PACKAGES := ./internal/access ./internal/cell ./internal/clienttest ./internal/crowd ./internal/egress ./internal/gateway ./internal/groupcommit ./internal/http/pages \
	./internal/match ./internal/pg ./internal/push ./internal/ratelimit ./internal/rounds ./internal/watermark
RACE_LARGE := ./internal/http ./internal/queue ./internal/schedule ./internal/topic
RACE_TESTS := Wait|Stream|Concurren|Together|AtOnce|Drain|Stop|Race|SameTime|Beside|Meanwhile|Shared|Cache|Several|Kill|Late
.PHONY: test-race
test-race: export CGO_ENABLED = 1
test-race: ## Test with the race detector, where goroutines share memory
	@$(PGTEST) -flavour plain -- $(call gotest,$(RACE_PACKAGES),-race -vet=off -shuffle=on -parallel 4 -timeout 25m)
	@$(PGTEST) -flavour plain -- $(call gotest,$(RACE_LARGE),-race -vet=off -shuffle=on -parallel 4 -timeout 25m -run '$(RACE_TESTS)')

.PHONY: test-faults
test-faults: ## Kill, freeze, cut off and fail over real servers, each once or a few times
	@QUEUED_FAULTS=short $(call gotest,./internal/faults,-vet=off -count=1 -timeout 15m -parallel 4 $(ARGS))

.PHONY: faults
faults: ## The same for hours; QUEUED_FAULTS_ROUNDS=3 and ARGS='-run Frozen' for fewer
	@QUEUED_FAULTS=long go test -count=1 -timeout 6h -parallel 2 -v -skip '$(YEAR)' $(ARGS) ./internal/faults

YEAR := ^TestYearPassesAndNothingIsLostOrGrows$$
.PHONY: year
year: ## A year in an hour or two: a service whose clock jumps; QUEUED_YEAR_LENGTH=336h, QUEUED_YEAR_JUMP=1h and QUEUED_YEAR_INTERVAL=400ms for another one
	@QUEUED_FAULTS=long go test -count=1 -timeout 24h -v -run '$(YEAR)' $(ARGS) ./internal/faults

# The suites that speak HTTP, through a gateway with as many cells behind it, one number after the other
CELLS ?= 3
SHORT ?= -short
.PHONY: test-gateway
test-gateway: ## Test HTTP, the command line and the Go client through a gateway in front of CELLS cells (3): a selection, with SHORT= all
	@for cells in $(CELLS); do $(PGTEST) -flavour plain -- go run ./internal/gatewaytest/run -cells $$cells $(SHORT) $(ARGS); done

.PHONY: test-client
test-client: ## Test the module client/ without a server; internal/clienttest tests it with one
	@$(call gotest_in,client,./...,-vet=off -shuffle=on -timeout 10m $(RACE) $(ARGS))

.PHONY: test-bench
test-bench: ## Test the module bench/, on a plain PostgreSQL that is private to the run
	@$(call gotest_in,bench,./...,-vet=off -shuffle=on -parallel 4 -timeout 10m $(ARGS),$(PGTEST) -flavour plain --)

.PHONY: slow
slow: ## List the 50 slowest tests of PKG, by processor time and time in the database, on plain PostgreSQL, one at a time
	@rm -f bin/slow; mkdir -p bin
	@QUEUED_TEST_TIMES=$(CURDIR)/bin/slow $(FAULTS_ELSEWHERE) $(PGTEST) -flavour plain -- $(call gotest,$(PKG),-vet=off -p 1 -parallel 1 -timeout 2h $(ARGS))
	@printf '%8s %9s %8s %7s %8s  %s\n' total processor database whole sessions test
	@awk -F '\t' -v dir='$(CURDIR)/' '{ sub(dir, "", $$5); printf "%8.2f %9.2f %8.2f %7.2f %8d  %s\n", $$2 + $$3, $$2, $$3, $$1, $$4, $$5 }' bin/slow | sort -rn | head -n 50

.PHONY: pictures
pictures: ## Take the pictures of docs/dashboard.md anew: needs Chromium
	@rm -rf docs/pictures
	@QUEUED_E2E_PICTURES=$(CURDIR)/docs/pictures $(MAKE) --no-print-directory test-browser ARGS='-run ^TestPicturesOfTheDocumentation$$$$'

.PHONY: test-browser
test-browser: ## Test the module e2e/ with a browser: needs Chromium (apt-get install chromium); make test-all leaves it out where there is none
	@$(call gotest_in,e2e,./...,-vet=off -count=1 -timeout 10m $(ARGS),$(PGTEST) -flavour plain --)

.PHONY: bench
bench: ## Measure queued, its lower bound and its peers, on FLAVOUR (timescale); BENCH='suite --rounds 3 …', BENCH='single …'
	@$(PGTEST) -flavour $(FLAVOUR) -durable -- go run -C bench ./cmd/queued-bench --out $(OUT) $(BENCH)

.PHONY: fuzz
fuzz: ## Fuzz each decoder for FUZZTIME (30s)
	@for package in ./client ./internal/cloudevents ./internal/egress ./internal/http ./internal/match ./internal/schedule; do for target in $$(grep -ho '^func Fuzz[A-Za-z]*' $$package/*_test.go | cut -c6-); do \
		go test -C $$package -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZTIME),30s); done; done

TARGETS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
.PHONY: builds
builds: ## Build for every system and architecture, and keep nothing; the tests are compiled for those systems that they do not run on
	@for target in $(TARGETS); do CGO_ENABLED=0 GOOS=$${target%/*} GOARCH=$${target#*/} go build -o /dev/null ./cmd/queued || \
		{ echo "$$target: the build has failed"; exit 1; }; done
	@for system in darwin windows; do GOOS=$$system go vet ./... || { echo "$$system: see above"; exit 1; }; done

# All modules at once, as a workspace, so that what they share is read once
LINT = lint=$$($(TOOL) -n golangci-lint); work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; export GOWORK=$$work/go.work; \
	go work init . bench client e2e; $$lint run ./... ./bench/... ./client/... ./e2e/...

.PHONY: check
check: ## Lint, formatting, modules, functions that nothing calls, alerts (with promtool): what CI runs beside the tests
	@$(LINT)
	@$(TOOL) golangci-lint fmt --diff
	@go mod tidy -diff
	@cd bench && go mod tidy -diff
	@cd e2e && go mod tidy -diff
	@cd client && go mod tidy -diff
	@go mod verify >/dev/null
	@uncalled=$$($(TOOL) deadcode -test ./...); if [ -n "$$uncalled" ]; then echo "$$uncalled"; exit 1; fi
	@if command -v promtool >/dev/null; then promtool check rules deploy/prometheus/alerts.yml >/dev/null && promtool test rules deploy/prometheus/alerts_test.yml >/dev/null || \
		{ promtool test rules deploy/prometheus/alerts_test.yml; exit 1; }; fi
	@diff <(sed -n '/^FROM scratch/,$$p' build/queued/Dockerfile) <(sed -n '/^FROM scratch/,$$p' build/queued/Dockerfile.program)
	@for script in build/images build/secrets build/smoke build/postgres/entrypoint build/postgres/healthcheck deploy/patroni/make-database .ci/run .ci/packages examples/worker.sh; do bash -n $$script; done

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
