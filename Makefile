# Gate: the two commands a newcomer needs are `make run` and `make test`.
# `make` alone prints this list.

GO        ?= go
PGRUN     := $(GO) run ./fixtures/pgrun --install --
FUZZTIME  ?= 30s
CRASHES   ?= 200
CHANGES   ?= 1000
CATALOG_CHANGES ?= 1000
SOAK_MINUTES ?= 30
WATCHROUNDS ?= 40
DAMAGED   ?= 3000
LARGE     ?= 5368709120
TELEMETRY ?= 1000000
STREAMS   ?= 5000
DRYRUNS   ?= 10000
SEQUENCES ?= 100000
LIMITS    ?= 10000
STATES    ?= 100000
PG_BINS   ?= $(wildcard /usr/lib/postgresql/*/bin)
SERVERS   := $(foreach major,15 16 17 18,$(CURDIR)/var/postgresql/node_modules/postgresql-$(major)/native/bin)

OUT       ?= var/screenshots
EVENTS    ?= 100000
BASE      ?= HEAD~1

.DEFAULT_GOAL := help

.PHONY: help
help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Without a C compiler Go leaves cgo out in silence, and then misses a package.
.PHONY: compiler
compiler:
	@command -v "$$($(GO) env CC | cut -d ' ' -f 1)" >/dev/null || \
	  { echo "A C compiler is needed, because PostgreSQL's parser is C. On Debian: apt-get install gcc libc6-dev" >&2; exit 1; }

.PHONY: build
build: compiler ## build bin/gate and bin/logverify
	$(GO) build -o bin/gate ./cmd/gate
	CGO_ENABLED=0 $(GO) build -o bin/logverify ./cmd/logverify

.PHONY: run
run: build ## install what is missing, start a private PostgreSQL and the gate with a sample policy, print a tour
	bin/gate demo

# The vet of `go test` is a part of lint's. Packages that wait leave the processor to others;
# those that take longest begin first.
.PHONY: test
test: lint ## every test that CI runs, against a private PostgreSQL
	$(PGRUN) $(GO) test -count=1 -vet=off -timeout 60m -p 4 -parallel 6 ./cmd/gate ./sqlgate ./sqlgate/classify ./sqlgate/pgexec ./...

.PHONY: race
race: ## the same under the race detector
	$(PGRUN) $(GO) test -race -timeout 60m ./...

.PHONY: lint
lint: compiler ## gofmt and go vet; no file of the repository is larger than a mebibyte
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt would change: $$unformatted"; exit 1; fi
	@large=$$(git ls-files -z 2>/dev/null | xargs -0 -r sh -c 'find "$$@" -size +1024k' sh); if [ -n "$$large" ]; then echo "too large for a source: $$large"; exit 1; fi
	$(GO) vet ./...

.PHONY: crash
crash: ## kill -9 loops on the event log and on the whole gate under load: CRASHES rounds each (default 200)
	EVENTLOG_TEST_KILLS=$(CRASHES) $(GO) test -count=1 -timeout 60m -v -run Kill ./eventlog
	CRASH_ROUNDS=$(CRASHES) $(PGRUN) $(GO) test -count=1 -timeout 60m -v -run Kill ./cmd/gate

.PHONY: client
client: ## generate a client from the description that a gate serves, and use it
	CLIENT_TEST=1 $(PGRUN) $(GO) test ./cmd/gate -run GeneratedFromTheServedDescription -count=1

.PHONY: clients
clients: compiler ## every client of docs/WIRE.md goes through one list at a database and behind a gate, which has to make no difference (installs node, Python and Java)
	fixtures/wireclients/install.sh
	WIRE_CLIENTS_ALL=1 $(PGRUN) $(GO) test -count=1 -timeout 30m -v -run EveryClient ./cmd/gate

.PHONY: mcp
mcp: compiler ## the official TypeScript client of MCP, the inspector's command line and the Go client go through one list at a gate, over HTTP and gate mcp (installs them under var/mcpclients)
	fixtures/mcpclients/install.sh
	MCP_CLIENTS=../../var/mcpclients $(PGRUN) $(GO) test -count=1 -timeout 20m -v -run EveryClientOfTheTools ./cmd/gate

.PHONY: outcomes
outcomes: ## break every form of execution at every message with every fault, and compare what is recorded with the database
	OUTCOMES_ALL=1 $(PGRUN) $(GO) test -count=1 -timeout 120m -parallel 12 -v -run 'RecordedOutcome|KilledAtAnyMessage|WhateverBefalls|AFailover|WhateverMessage' ./cmd/gate ./sqlgate

.PHONY: soak
soak: ## 24 mixed clients for SOAK_MINUTES (default 30), with gates and databases killed and connections broken meanwhile
	SOAK_MINUTES=$(SOAK_MINUTES) $(PGRUN) $(GO) test -count=1 -timeout $$(($(SOAK_MINUTES) + 60))m -v -run ManyClientsForALongTime ./cmd/gate

.PHONY: schemas
schemas: ## a trigger that comes and goes CATALOG_CHANGES times (default 1000) under a running gate: it never fires for a statement that was judged without it
	CATALOG_CHANGES=$(CATALOG_CHANGES) $(PGRUN) $(GO) test -count=1 -timeout 60m -v -run JudgedUnderAnotherSchema ./cmd/gate

.PHONY: policies
policies: ## change the active policy under load, forwards and back, CHANGES times (default 1000), and recompute every decision
	POLICY_CHANGES=$(CHANGES) $(PGRUN) $(GO) test -count=1 -timeout 60m -v -run 'Mixture|MixedRun' ./cmd/gate

.PHONY: fresh
fresh: ## drill: `make test` and `make run` as the only command on new Debian machines (root, debootstrap; minutes)
	fixtures/freshmachine/drill.sh

.PHONY: bench
bench: build ## measure the goals of speed as ratios (pgbouncer is installed for one), print them and write docs/BENCHMARKS.md (about eight minutes)
	$(GO) run ./fixtures/bench

.PHONY: bench-check
bench-check: compiler ## compare the speed of this tree with that of BASE (default HEAD~1), in turns, and fail on a loss (about three minutes)
	$(GO) run ./fixtures/bench check -base $(BASE)

.PHONY: profile
profile: compiler ## print what a statement costs: processor time by component and phase, switches, system calls, allocations, round trips (about three minutes)
	$(GO) run ./fixtures/bench profile

.PHONY: pg-tables
pg-tables: ## read the tables of built-in objects anew from the servers in PG_BINS (folders with postgres and initdb)
	$(GO) run ./fixtures/pgtables -data sqlgate/classify/data $(PG_BINS)

.PHONY: grammars
grammars: compiler servers ## make the table of what the grammars of PostgreSQL 15 to 18 do not share, and hold the classifier against all four parsers and servers
	fixtures/pggrammars/install.sh
	fixtures/oracle/install.sh
	$(GO) run ./fixtures/pggrammars $(SERVERS)
	@set -e; for bin in $(SERVERS); do \
	  CLASSIFY_ALL_NAMES=1 PATH="$$bin:$$PATH" $(GO) test -count=1 -timeout 60m -v -run 'OtherMajors|NoNameIn|EveryTypeName|EveryFormOf|BehindADot' ./sqlgate/classify; \
	done

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 30s)
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5x $$pkg; \
	  done; done

# strace answers system calls in the kernel's place; only these tests need it.
.PHONY: strace
strace:
	@command -v strace >/dev/null || { apt-get update && apt-get install -y strace; } || \
	  { echo "strace is needed, because system calls are made to fail. On Debian, as root: apt-get install strace" >&2; exit 1; }

.PHONY: faults
faults: compiler strace ## docs/FAULTS.md to the end: system calls that fail, verifiers beside writers, bugs of the past put back
	$(GO) test -tags faults -count=1 -timeout 30m -v -run 'Strace|ACallThatFails|APowerCut|CutShort' ./eventlog
	EVENTLOG_TEST_GROUPS=4000 $(GO) test -count=1 -timeout 30m -v -run 'AVerifierBeside|Vanish' ./eventlog
	RESTORE_WRITERS=32 $(PGRUN) $(GO) test -count=1 -timeout 30m -v -run 'Backup|Restore|DamagedLogGives' ./cmd/gate
	$(PGRUN) $(GO) test -tags faults -count=1 -timeout 60m -v ./fixtures/faults

.PHONY: verifiers
verifiers: ## both verifiers of evidence: DAMAGED files of each kind (default 3000), a bundle of 100,000 events, 10,000 cut logs
	CHECKPOINT_CUTS=10000 $(GO) test -count=1 -timeout 60m -v -run Cut ./commands/checkpoints
	EVIDENCE_CUTS=10000 $(GO) test -count=1 -timeout 60m -v -run Cut ./eventlog/evidence
	BUNDLE_EVENTS=100000 $(PGRUN) $(GO) test -count=1 -timeout 60m -v -run LargeBundle ./cmd/gate
	SECOND_VERIFIER_ROUNDS=$(DAMAGED) SECOND_VERIFIER_EVENTS=100000 $(GO) test -count=1 -timeout 60m -v ./fixtures/secondverifier

.PHONY: large
large: ## verify and rebuild from a log of LARGE bytes (default 5 GiB; twice that on disk) and show the peaks of memory, and goal L5
	LARGE_LOG_BYTES=$(LARGE) $(GO) test -count=1 -timeout 120m -v ./fixtures/largelog

.PHONY: telemetry
telemetry: ## a day of TELEMETRY telemetry events (default 1,000,000): memory, metrics held against the log, and how long their answers take
	TELEMETRY_EVENTS=$(TELEMETRY) $(PGRUN) $(GO) test -count=1 -timeout 60m -v -run ManyTelemetryEvents ./cmd/gate
	TELEMETRY_EVENTS=$(TELEMETRY) $(GO) test -count=1 -timeout 60m -run '^$$' -bench OfADay -benchtime 10x ./agentctl

.PHONY: approval-wait
approval-wait: ## what a minute of 64 requests that wait for an approval costs, beside nothing else and beside ten writes a second (three minutes)
	$(PGRUN) $(GO) test -count=1 -timeout 20m -run '^$$' -bench WaitForAnApproval -benchtime 1x ./cmd/gate

.PHONY: dryruns
dryruns: ## DRYRUNS random plain writes (default 10,000), each run dry and then for good: the counts must be the same, and the dry run must leave nothing
	DRYRUNS=$(DRYRUNS) $(PGRUN) $(GO) test -count=1 -timeout 240m -v -run RandomDryRuns ./cmd/gate

.PHONY: streams
streams: ## STREAMS random streams (default 5000) to the gate and to PostgreSQL itself, which must agree, SEQUENCES (default 100,000) whose log and table must, LIMITS (default 10,000) of writes with row limits, which none may pass, and STATES statements (default 100,000) that change their session, of which the next must not see any
	WIRE_STREAMS=$(STREAMS) $(PGRUN) $(GO) test -count=1 -timeout 120m -v -run AnyStreamOfMessages ./cmd/gate
	WIRE_SEQUENCES=$(SEQUENCES) $(PGRUN) $(GO) test -count=1 -timeout 240m -v -run WhateverAClientSends ./cmd/gate
	WIRE_LIMITS=$(LIMITS) $(PGRUN) $(GO) test -count=1 -timeout 240m -v -run NoWritePassesItsRowLimit ./cmd/gate
	WIRE_STATES=$(STATES) $(PGRUN) $(GO) test -count=1 -timeout 240m -v -run NoStatementMeets ./cmd/gate

.PHONY: watch
watch: ## run all that is judged a safe read on a PostgreSQL that lets it write, WATCHROUNDS times (default 40), and watch; 20,000 conditions and the constants of keys by what they reach; every product of lists
	CLASSIFY_WATCH_ROUNDS=$(WATCHROUNDS) CLASSIFY_WHERE=20000 CLASSIFY_KEY=1500 $(GO) test -count=1 -timeout 60m -v -run 'OnlyAnswer|TheWatcher|NoConditionReaches|AKeyIsEqual|NoProduct' ./sqlgate/classify

.PHONY: oracle
oracle: compiler servers ## run PostgreSQL's own regression SQL on PostgreSQL 15 to 18 and watch each read: no safe one may do more than answer; then every statement in other ways, which must keep the facts
	fixtures/oracle/install.sh
	$(GO) run ./fixtures/oracle -out var/oracle/statements $(SERVERS)
	CLASSIFY_MUTATE=$(CURDIR)/var/oracle/statements $(GO) test -count=1 -timeout 60m -v -run AMutationKeeps ./sqlgate/classify

.PHONY: redteam
redteam: compiler servers ## every attack through every channel, under every policy and role, on PostgreSQL 15 to 18, with the server watched and the log compared
	@set -e; for bin in $(SERVERS); do \
	  echo "== $$bin"; PATH="$$bin:$$PATH" REDTEAM_ALL=1 $(PGRUN) $(GO) test -count=1 -timeout 60m -v -run RedTeam ./cmd/gate; \
	done

# What is left out holds what PostgreSQL 15 says by itself (a warning about SET LOCAL), and what its psql asks for.
.PHONY: majors
majors: compiler servers ## the tests of all that talks to PostgreSQL on each of 15 to 18
	@set -e; for bin in $(SERVERS); do \
	  echo "== $$bin"; PATH="$$bin:$$PATH" $(PGRUN) $(GO) test -count=1 -timeout 60m -p 1 -parallel 6 \
	    -skip 'TestConversationsWithARealServerAreWrittenDown/settings|TestPsqlShowsTables' ./sqlgate/... ./cmd/gate; \
	done

.PHONY: traffic
traffic: compiler ## record anew what mappers, drivers and tools send to PostgreSQL (installs them under var/traffic); then look at the difference and run the tests of fixtures/traffic
	fixtures/traffic/install.sh
	$(GO) run ./fixtures/traffic/record

.PHONY: servers
servers: ## servers of PostgreSQL 15 to 18 from the npm registry, under var/postgresql (node and npm are installed)
	fixtures/pgservers/install.sh

.PHONY: screenshots
screenshots: ## pictures of every page of the dashboard, in light and dark and at two widths, in the folder OUT
	SCREENSHOTS=$(abspath $(OUT)) $(PGRUN) $(GO) test -count=1 -timeout 20m -v -run 'TheControlPlaneInABrowser/(every_page|what_to_do)' ./cmd/gate

.PHONY: dashboard
dashboard: ## when a browser paints the overview over a log of EVENTS events (default 100,000) with 500 approvals waiting
	PLANE_EVENTS=$(EVENTS) $(PGRUN) $(GO) test -count=1 -timeout 30m -v -run OverviewOverALongLog ./cmd/gate

.PHONY: clean
clean: ## remove bin/ and var/
	rm -rf bin var
