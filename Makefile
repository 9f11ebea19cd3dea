# The few verbs that people type; CI types `make test`. What is longer than a line lives in hack/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test crash fuzz tamper bench lint generate images cluster cluster-down

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'Root and Debian are needed, for the cluster on this machine; what is missing is installed. With KUBECONFIG set'
	@echo '`make demo` and `make images` use your own cluster; IMAGE_REGISTRY=host/prefix then says where its images go.'

demo: ## one run, evicted for real, that goes on: on a cluster on this machine, or on that of KUBECONFIG
	@hack/demo.sh

test: ## everything, stories on the real cluster included; the last line is the sum
	@hack/test.sh

crash: ## the operator killed before and after every step of a recovery, evicted, deleted and silent
	@DALSEGNO_E2E_CRASH_MATRIX=1 hack/stories.sh disasters operator_crash

fuzz: ## looks for bytes that break a decoder, five minutes each
	@hack/fuzz.sh 300

tamper: ## ten thousand random edits of each: rows in order, rows of a database, what is sealed there, bundles
	DALSEGNO_TAMPERINGS=10000 cargo test --locked -p dalsegno-store --test proof --test tampering random

bench: ## the figures of docs/reference/performance.md, as ratios to a floor measured in the same run
	@hack/bench.sh

lint: ## formats, lints, one TLS provider, the chart, the scripts
	@hack/lint.sh

generate: ## writes the CustomResourceDefinitions from crds/src
	cargo run --quiet --package dalsegno-crds --bin generate-crds

images: ## builds the programs and pushes their images
	@hack/images.sh

cluster: ## brings a real two-node Kubernetes up on this machine
	@hack/cluster.sh up

cluster-down: ## takes it down and leaves nothing behind
	@hack/cluster.sh down
