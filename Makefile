# The commands that people type. CI runs `make test`. Anything longer than a line is a script in hack/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo plugin test adapters crash soak upgrade fleet messages parked fuzz tamper bench lint generate images cluster cluster-down

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'The cluster on this machine needs root and Debian; missing packages are installed. If KUBECONFIG is set, `make demo`'
	@echo 'and `make images` use your own cluster, and IMAGE_REGISTRY=host/prefix names the registry for its images.'

demo: ## evict the pod of a run and watch the run resume, on a cluster on this machine or on that of KUBECONFIG
	@hack/demo.sh

plugin: ## build the kubectl plugin and install it, so that `kubectl dalsegno` works
	cargo install --locked --path cli

test: ## run all tests, the end-to-end tests on a real cluster included; the last line is the sum
	@hack/test.sh

adapters: ## run all tests of the modules for agent frameworks, and the frameworks' own suites
	@DALSEGNO_ADAPTERS=all hack/adapters.sh

crash: ## kill agents at their requests, and the operator before and after every step of a recovery, for each kind of death
	@hack/crash.sh

soak: ## break workers, nodes, the operator, the gateways and PostgreSQL at random for an hour, and check every run
	@DALSEGNO_E2E_SOAK_SECONDS=$${DALSEGNO_E2E_SOAK_SECONDS:-3600} hack/scenarios.sh chaos soak

upgrade: ## upgrade from the previous version and roll back while runs are active, on both stores
	@hack/scenarios.sh chaos upgrade

fleet: ## let two hundred runs meet bad weather: no registry, a slow webhook, a full quota, a sidecar, a bad roll-out
	@DALSEGNO_E2E_FLEET_RUNS=$${DALSEGNO_E2E_FLEET_RUNS:-200} hack/scenarios.sh chaos fleet

messages: ## send 1,200 messages to a run while its worker is killed fifty times and a person rewinds it
	@DALSEGNO_E2E_MESSAGE_DEATHS=$${DALSEGNO_E2E_MESSAGE_DEATHS:-50} hack/scenarios.sh scenarios messages_of_several

parked: ## park a thousand runs until one second, and fifty on one rate limit, restart everything, and check that each goes on once
	@hack/bench.sh ramp parked

fuzz: ## look for bytes that break a decoder, five minutes per target
	@hack/fuzz.sh 300

tamper: ## make ten thousand random edits of rows, databases and bundles, and check that each is detected
	DALSEGNO_TAMPERINGS=10000 cargo test --locked -p dalsegno-store --test proof --test tampering random

bench: ## measure the figures of docs/reference/performance.md, as ratios to a floor in the same run
	@hack/bench.sh

lint: ## check formats, lints, types, the TLS provider, the chart and the scripts
	@hack/lint.sh

generate: ## write the CustomResourceDefinitions from crds/src
	cargo run --quiet --package dalsegno-crds --bin generate-crds

images: ## build the programs and push their images; EXAMPLES=all adds those of the examples on frameworks
	@hack/images.sh $(EXAMPLES)

cluster: ## start a real two-node Kubernetes cluster on this machine
	@hack/cluster.sh up

cluster-down: ## stop the cluster and remove everything it has changed on this machine
	@hack/cluster.sh down
