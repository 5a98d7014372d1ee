# make help lists the targets.

GO ?= go
# The linters are built from source at these versions; nothing is installed.
GOLANGCI ?= $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK ?= $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0

# All fuzz targets, as ./event:FuzzNew.
FUZZERS ?= $(shell grep -ro --include='*_test.go' '^func Fuzz[A-Za-z]*' . | sed -E 's|/[^/]*:func |:|' | sort)
FUZZTIME ?= 60s

.PHONY: help test check lint tidy fuzz mutants test-cluster chaos crash failures bench bench-kafka bench-sql bench-brokers vuln servers stop soak stress

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

test: ## all tests with the race detector; real servers if integration/servers started them
	$(GO) test -race ./brokers/sqs ./... # the one that waits for longest begins

check: tidy lint test ## formatting, vet, linters, go.mod, all tests

lint: ## formatting, vet and linters
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'gofmt would change these'; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags stress ./brokers/...
	$(GOLANGCI) run ./...

tidy: ## go.mod and go.sum are what the code needs
	$(GO) mod tidy -diff

vuln: ## known vulnerabilities; needs the vulnerability database
	$(GOVULNCHECK) ./...

bench: ## the comparison with a bare and a stock Watermill router (90 s); JSON=1 for JSON lines
	@$(GO) run ./integration/bench $(if $(JSON),-json)

bench-kafka: ## Kafka: a raw loop, stock watermill-kafka and Headrace (2 min, table and JSON lines); FULL=1 for all handlers, windows and keys
	@eval "$$(integration/servers env kafka)" && $(GO) run ./integration/bench/kafka $(if $(FULL),-full) $(if $(JSON),-format json)

bench-sql: ## Postgres and SQLite: inbox, growth and outbox beside hand-written loops (15 min, most of it 20 million claims; table and JSON lines); PART=inbox, growth, relay or sqlite; JSON=1
	@eval "$$(integration/servers env postgres kafka)" && for part in $(or $(PART),inbox growth relay sqlite); do \
		$(GO) run ./integration/bench/sql $$part $(if $(JSON),-format json) || exit 1; done

bench-brokers: ## every adapter beside the stock one and the raw client (3 min, table and JSON lines); ONLY=kafka/headrace, JSON=1
	@eval "$$(integration/servers env)" && $(GO) run ./integration/bench/brokers $(if $(ONLY),-only $(ONLY)) $(if $(JSON),-format json)

fuzz: ## fuzz every target for FUZZTIME (60s), two at a time; FUZZERS="./event:FuzzNew" for some; CI runs four of them
	@printf '%s\n' $(FUZZERS) | xargs -P 2 -I{} .ci/fuzz {} $(FUZZTIME)

mutants: ## break the program on purpose, one fault at a time, and see that the tests notice (half an hour); RUN=regexp for some
	@$(GO) run ./integration/mutants $(if $(RUN),-run '$(RUN)')

test-cluster: ## restart each of three Kafka brokers in turn under load (2 GB, minutes; CI does not)
	integration/servers start kafka3a kafka3b kafka3c
	eval "$$(integration/servers env kafka3a)" && $(GO) test -race -count=1 -run OnCluster ./brokers/kafka; \
		rc=$$?; integration/servers stop kafka3a kafka3b kafka3c; exit $$rc

failures: ## 60 s without a database, 1,000 poison messages among 100,000, a killer among 1,024 (many minutes; CI runs small sizes)
	integration/servers start kafka postgres
	@addresses="$$(integration/servers env kafka postgres)" && eval "$$addresses" && \
		CI=true $(GO) test -v -count=1 -timeout 60m ./integration/failures -full

crash: ## Postgres: kill everything while 200,000 events go through (10 min, own server; as root the disk fills up too); SEED=n for the plan of another run
	@$(GO) run ./integration/crash/full $(if $(SEED),-seed $(SEED)) $(if $(EVENTS),-events $(EVENTS))

chaos: ## seven pipelines on five brokers under every kind of trouble, judged (own servers); DURATION=3m, SEED=n for the plan of another run, CLUSTER=1 for Kafka's leaders
	@$(GO) run ./integration/chaos -duration $(or $(DURATION),3m) $(if $(SEED),-seed $(SEED)) $(if $(CLUSTER),-cluster)

soak: ## Kafka and Postgres: an hour at a steady load; what grows fails it. DURATION=10m, RATE=500 (default: three quarters of what fits)
	@eval "$$(integration/servers env kafka postgres)" && $(GO) run ./integration/soak -duration $(or $(DURATION),1h) -rate $(or $(RATE),0) -svg docs/soak.svg -csv docs/soak.csv

stress: ## Watermill's universal suite on each broker, STRESS_TEST_COUNT (2) times at once (many minutes); ONLY=./brokers/kafka for some
	@eval "$$(integration/servers env)" && STRESS_TEST_COUNT=$(or $(STRESS_TEST_COUNT),2) \
		$(GO) test -tags stress -run Stress -p 1 -count=1 -timeout 60m $(or $(ONLY),./brokers/...)

servers: ## install (as root, once) and start the real servers of the tests
	integration/servers install
	integration/servers start

stop: ## stop them
	integration/servers stop
