# Thin: targets only call `python -m reproductions`, which lists, measures and shows.
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
# Errors then name make's variables, not the command line's options.
export LAYERLAB_MAKE := 1

# A value as one word of the shell, whatever quotes it holds; what is empty, 0, no, false or off is not on.
quoted = '$(subst ','\'',$(1))'
option = $(if $(strip $(2)),$(1) $(call quoted,$(2)))
on = $(filter-out 0 n no No NO false False FALSE off Off OFF,$(1))
NARROW = $(call option,--profile,$(PROFILE)) $(foreach m,$(MODEL),$(call option,--model,$(m))) $(call option,--remove,$(REMOVE)) \
	$(call option,--row,$(ROW)) $(call option,--limit,$(LIMIT)) $(call option,--dtype,$(DTYPE)) \
	$(if $(call on,$(FULL_TEST_SETS)),--full-test-sets) $(if $(call on,$(PAPER_BUDGET)),--paper-budget) \
	$(call option,--samples,$(SAMPLES)) $(call option,--seed,$(SEED)) $(call option,--text,$(TEXT)) $(call option,--alpha,$(ALPHA))
# Shells and terminals put the window's width into the environment as COLUMNS.
SHOWN = $(NARROW) $(if $(filter command,$(origin COLUMNS)),$(call option,--columns,$(COLUMNS))) $(call option,--format,$(FORMAT)) \
	$(call option,--pictures,$(PICTURES)) $(if $(call on,$(EVERY_ROW)),--every-row)
MEASURED = $(SHOWN) $(call option,--device,$(DEVICE)) $(if $(call on,$(FORCE)),--force)

# Old names of options, for one release.
renamed = $(if $(filter command line,$(origin $(1))),$(error $(1)= has a new name: use $(2)=1))
$(call renamed,WHOLE,FULL_TEST_SETS)$(call renamed,FULL,PAPER_BUDGET)

# Which variables each kind of target reads.
GOALS := $(or $(MAKECMDGOALS),help)
READS_fetch := PROFILE MODEL REMOVE ROW LIMIT DTYPE FULL_TEST_SETS PAPER_BUDGET SAMPLES SEED TEXT ALPHA CONVERT_WEIGHTS
READS_render := $(filter-out CONVERT_WEIGHTS,$(READS_fetch)) COLUMNS FORMAT PICTURES EVERY_ROW
READS_table := $(READS_render) DEVICE FORCE
READS_prune := MODEL REMOVE LAYERS METHOD OUT TEXT TASKS SAMPLES SEED DEVICE DTYPE PLAN QUICK FORCE
READS_benchmarks := ONLY
READS_serve := PORT
READS_gpu-batch := MODEL MINUTES GPU_WORKERS DEVICE LIMIT DRYRUN
READS_test := WORKERS
READS_test-slow := WORKERS
READS_test-all := WORKERS
KINDS := table render fetch prune benchmarks serve gpu-batch test test-slow test-all
VARIABLES := $(sort $(foreach k,$(KINDS),$(READS_$(k))) PYTHON VENV)

# A variable that no target reads is a mistake: it is refused before anything is made, with the nearest one that there is.
UNKNOWN := $(filter-out $(VARIABLES),$(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $(v))),$(v))))
ifneq ($(UNKNOWN),)
nearest = $(shell test ! -x $(RUN) || $(RUN) -c 'import sys; from common.utils.errors import unknown; print(unknown("variable", sys.argv[1], sys.argv[2:]))' \
	$(call quoted,$(1)) $(VARIABLES))
$(foreach v,$(UNKNOWN),$(error $(or $(call nearest,$(v)),unknown variable $(v); known: $(VARIABLES))))
endif

.DEFAULT_GOAL := help
PAPERS := linearpatch prunecomp laco reassessing
OWN := help setup setup-quantization setup-browser test test-slow test-all test-slurm test-report lint benchmarks gpu gpu-batch readme \
	prune publish report serve shell audit clean $(PAPERS)
FOLDERS := common docs extensions figures papers reproductions tests

# So is one that none of the targets asked for reads. Of what is no target, the nearest ones are named later.
kind = $(or $(if $(filter %-render,$(1)),render),$(if $(filter %-fetch,$(1)),fetch),$(if $(filter table% figure% grid league% $(PAPERS),$(1)),table),$(1))
called = $(or $(if $(filter table,$(1)),tables and figures such as table1-linearpatch),$(if $(filter render fetch,$(1)),TARGET-$(1)),$(1))
reads = $(or $(filter PYTHON VENV,$(1)),$(foreach g,$(GOALS),$(if $(filter $(call kind,$(g)),$(OWN) $(KINDS)),$(filter $(1),$(READS_$(call kind,$(g)))),$(1))))
comma := ,
readers = $(foreach k,$(KINDS),$(if $(filter $(1),$(READS_$(k))),$(call called,$(k))$(comma)))
given = $(if $(filter command,$(origin $(1))),$(strip $($(1))))
$(foreach v,$(VARIABLES),$(if $(call given,$(v)),$(if $(strip $(call reads,$(v))),,\
	$(error $(v)= has no effect on $(GOALS). It applies to: $(subst $(comma)|,,$(strip $(call readers,$(v)))|)))))
.PHONY: $(OWN) $(FOLDERS)

help:  ## this list
	@echo "Tables and figures (TARGET runs and shows; TARGET-render only shows; TARGET-fetch downloads what it needs):"
	@if [ -e $(STAMP) ]; then $(RUN) -m reproductions list | sed 's/^/  /'; \
	else echo "  listed once .venv is there (make setup, some minutes and 3 GB); until then: docs/tables.md"; fi
	@echo "Also:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1  \2/p' Makefile
	@echo "  $(PAPERS)  every table and figure of one paper, in one run"
	@echo "Options: MODEL=smollm2-135m-instruct REMOVE=7,9 PROFILE=paper ROW='LinearPatch*' COLUMNS='WIKI-2,PTB' LIMIT=20 FULL_TEST_SETS=1 PAPER_BUDGET=1 DEVICE=cuda DTYPE=bfloat16 FORCE=1 FORMAT=md EVERY_ROW=1; for TARGET-fetch CONVERT_WEIGHTS=1"
	@echo "One row another way, beside the published one: ROW='LinearPatch[S]' SAMPLES=16 SEED=3 TEXT=c4-train ALPHA=0.9"

setup: $(STAMP)  ## build .venv from requirements.lock

# The stamp comes last, so that an environment whose installation was cut off is repaired by the next call.
$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install Python 3.11 or set PYTHON=" >&2; exit 2; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "setting up $(VENV) (some minutes the first time)" >&2
	@# torch on its own first: a wheel that is already on the machine is taken as it is.
	$(VENV)/bin/pip install -q --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(VENV)/bin/pip install -q --disable-pip-version-check -r requirements.lock
	$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Without their requirements: gptqmodel's metadata would replace torch by a CUDA build of another version. Building its
# source packages takes a compiler and about two minutes; the first quantization compiles its CPU kernels, once.
GPTQ := gptqmodel==7.7.0 optimum==2.3.0 tokenicer==0.0.14 defuser==0.0.28 device-smi==0.5.7 logbar==0.4.15 pypcre==0.6.4 \
	torchao==0.18.0 ninja==1.13.2 maturin==1.16.0
setup-quantization: $(STAMP)  ## add GPTQ (optional; needs a compiler)
	$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps $(GPTQ)

# Browsers are no part of the environment: apt install chromium, or .venv/bin/playwright install chromium.
setup-browser: $(STAMP)  ## add what test-report drives a browser with (optional; a Chromium is installed apart)
	$(VENV)/bin/pip install -q --disable-pip-version-check playwright==1.65.2 axe-playwright-python==0.1.8

# One process a core, each with one thread; a process that has nothing left takes half of what another still has to do.
WORKERS ?= logical
PYTEST = unset LAYERLAB_MAKE; HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

test: $(STAMP)  ## run the tests, but for the slow ones
	$(PYTEST) -m "not slow and not slurm"

test-slow: $(STAMP)  ## run the slow ones alone
	$(PYTEST) -m "slow and not slurm"

test-all: $(STAMP)  ## run every test
	$(PYTEST) -m "not slurm"

test-slurm: $(STAMP)  ## run a grid on a SLURM of this host alone, kills included (root; apt-get install slurmctld slurmd munge)
	unset LAYERLAB_MAKE; HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(RUN) -m pytest -m slurm -rs

test-report: $(STAMP)  ## open the report in a headless Chromium (skipped where there is none)
	unset LAYERLAB_MAKE; HF_HUB_OFFLINE=1 $(RUN) -m pytest -rs tests/reproductions/site/test_site.py tests/browser

lint: $(STAMP)  ## ruff
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

benchmarks: $(STAMP)  ## speed and memory against stated baselines, into benchmarks/README.md (ONLY=scoring,search: some)
	@$(RUN) benchmarks/run.py $(call quoted,$(ONLY))

gpu: $(STAMP)  ## times and memories that depend on shapes and on a CUDA GPU (under ten minutes)
	$(RUN) benchmarks/gpu_shapes.py

# DRYRUN=1 prints the forecast alone. MODEL=, DEVICE=, LIMIT= as elsewhere.
gpu-batch: $(STAMP)  ## measure on a GPU what is missing of the Qwen models, most valuable first, in MINUTES=9 (DRYRUN=1: forecast)
	@$(RUN) -m reproductions.engine.gpu_batch $(call option,--minutes,$(MINUTES)) $(call option,--workers,$(GPU_WORKERS)) \
		$(foreach m,$(MODEL),$(call option,--model,$(m))) $(call option,--device,$(DEVICE)) \
		$(call option,--limit,$(LIMIT)) $(if $(call on,$(DRYRUN)),--dry-run)

readme: $(STAMP)  ## write what README and docs say of the published records
	$(RUN) -m reproductions.documents.readme

publish: $(STAMP)  ## add what was measured here to reproductions/results, and draw figures/rendered from it
	@$(RUN) -m reproductions.publish; status=$$?; $(RUN) -m reproductions.documents.published_figures && exit $$status

report: $(STAMP)  ## write guides, notebooks, API reference and results as one site, report/index.html
	@$(RUN) -m reproductions.site

METHODS := refit linearpatch prunecomp laco reassessing
TOOL = $(or $(strip $(METHOD)),refit)
# The last part of the model's path. make's own functions split a path at spaces, and leave .. as it is.
NAME = $$($(RUN) -c 'import os, sys; print(os.path.basename(os.path.abspath(sys.argv[1])))' $(call quoted,$(MODEL)))
prune: $(STAMP)  ## remove layers of your model: MODEL=./my-model REMOVE=8 or LAYERS=21-28; also METHOD=refit OUT=./pruned TEXT= TASKS= PLAN=1 QUICK=1
	$(if $(strip $(MODEL)),,$(error make prune needs a model. Name one, for instance MODEL=./my-model))
	$(if $(strip $(REMOVE)$(LAYERS)),,$(error make prune needs the number of layers to remove. Give one, for instance REMOVE=8, or name layers: LAYERS=21-28))
	$(if $(filter-out $(METHODS),$(TOOL)),$(error unknown METHOD $(TOOL). Use one of $(METHODS)))
	@LAYERLAB_MAKE=prune $(RUN) -m $(if $(filter refit,$(TOOL)),extensions,papers).$(TOOL) $(call option,--model,$(MODEL)) $(call option,--remove,$(REMOVE)) $(call option,--layers,$(LAYERS)) \
		--out $(if $(OUT),$(call quoted,$(OUT)),"$(NAME)-pruned") $(call option,--text,$(TEXT)) \
		$(call option,--tasks,$(TASKS)) $(call option,--samples,$(SAMPLES)) $(call option,--seed,$(SEED)) \
		$(call option,--device,$(DEVICE)) $(call option,--dtype,$(DTYPE)) $(if $(call on,$(PLAN)),--plan) $(if $(call on,$(QUICK)),--quick) \
		$(if $(call on,$(FORCE)),--force)

shell: $(STAMP)  ## a shell in which .venv is active: `python -m papers.laco --help` runs as printed; exit leaves it
	@. $(VENV)/bin/activate && unset LAYERLAB_MAKE && exec "$${SHELL:-bash}"

serve: $(STAMP)  ## the same, shown on http://127.0.0.1:8000 (PORT= says another)
	@$(RUN) -m reproductions.site
	@$(RUN) -m http.server --bind 127.0.0.1 --directory report $(call quoted,$(or $(PORT),8000)) || \
		{ echo "error: cannot serve on this port; name another one, such as PORT=8001" >&2; exit 2; }

audit: $(STAMP)  ## check the papers' own arithmetic; also writes papers/AUDIT.md
	@$(RUN) -m reproductions audit
	@$(RUN) -m reproductions.audit.report

# One process for a whole paper: recipes that several tables share are prepared once.
$(PAPERS): $(STAMP)
	@$(RUN) -m reproductions run $$($(RUN) -m reproductions list | sed -n 's/^\([^ ]*-$@\) .*/\1/p') $(MEASURED)

clean:  ## remove caches (records and .venv stay)
	rm -rf .cache .pytest_cache .ruff_cache

RENDER = $(RUN) -m reproductions show $(call quoted,$(@:-render=)) $(SHOWN)
FETCH = $(RUN) -m reproductions fetch $(call quoted,$(@:-fetch=)) $(NARROW) $(if $(call on,$(CONVERT_WEIGHTS)),--convert-weights)
# A failed cell does not hide the table: what there is is shown, and the command fails.
MEASURE = $(RUN) -m reproductions run $(call quoted,$@) $(MEASURED)

table%-render figure%-render: $(STAMP)
	@$(RENDER)

table%-fetch figure%-fetch: $(STAMP)
	@$(FETCH)

table% figure%: $(STAMP)
	@$(MEASURE)

# Targets without a number: Prune&Comp's grid, and the league's tables.
UNNUMBERED := grid league league-seeds league-answers league-texts league-graft league-distilled league-measures \
	league-questions ablation-league ablation-league-seeds
$(UNNUMBERED): $(STAMP)
	@$(MEASURE)

$(UNNUMBERED:=-render): $(STAMP)
	@$(RENDER)

$(UNNUMBERED:=-fetch): $(STAMP)
	@$(FETCH)

# Whatever else is asked for is no target: the nearest are named.
$(FOLDERS) .DEFAULT:
	@test -x $(RUN) || { printf 'error: make has no target %s; make help lists all\n' $(call quoted,$@) >&2; exit 2; }
	@$(RUN) -m reproductions show $(call quoted,$@) --also '$(OWN)'
