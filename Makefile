# Thin: targets only call `python -m reproductions`, which lists, measures and shows.
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.stamp

NARROW := $(if $(PROFILE),--profile $(PROFILE)) $(foreach m,$(MODEL),--model $(m)) $(if $(REMOVE),--remove $(REMOVE)) \
	$(if $(ROW),--row '$(ROW)') $(if $(LIMIT),--limit $(LIMIT)) $(if $(DTYPE),--dtype $(DTYPE))
MEASURE := $(if $(DEVICE),--device $(DEVICE)) $(if $(FORCE),--force)
FORMAT ?= terminal

.DEFAULT_GOAL := help
PAPERS := linearpatch prunecomp laco reassessing
.PHONY: help setup setup-quantization test lint benchmarks gpu readme audit clean $(PAPERS)

help: $(STAMP)  ## this list
	@echo "Tables and figures (TARGET runs and shows; TARGET-render only shows; TARGET-fetch downloads what it needs):"
	@$(RUN) -m reproductions list | sed 's/^/  /'
	@echo "Also:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1  \2/p' Makefile
	@echo "  $(PAPERS)  every table and figure of one paper, in one run"
	@echo "Options: MODEL=smollm2-135m-instruct REMOVE=7,9 PROFILE=paper ROW='LinearPatch*' LIMIT=20 DEVICE=cuda DTYPE=bfloat16 FORCE=1 FORMAT=md"

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
	torchao==0.18.0 protobuf==7.36.2 ninja==1.13.2 maturin==1.16.0
setup-quantization: $(STAMP)  ## add GPTQ (optional; needs a compiler)
	$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps $(GPTQ)

test: $(STAMP)  ## run the tests
	HF_HUB_OFFLINE=1 $(RUN) -m pytest

lint: $(STAMP)  ## ruff
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

benchmarks: $(STAMP)  ## speed and memory against stated baselines
	@for file in $(filter-out benchmarks/gpu_%,$(wildcard benchmarks/[a-z]*.py)); do echo "== $$file"; $(RUN) $$file || exit 1; done

gpu: $(STAMP)  ## times and memories that depend on shapes and on a CUDA GPU (under ten minutes)
	$(RUN) benchmarks/gpu_shapes.py

readme: $(STAMP)  ## write the tables of README.md from the published records
	$(RUN) -m reproductions.readme

audit: $(STAMP)  ## check the papers' own arithmetic; also writes papers/AUDIT.md
	@$(RUN) -m reproductions audit
	@$(RUN) -m reproductions.audit.report

# One process for a whole paper: recipes that several tables share are prepared once.
$(PAPERS): $(STAMP)
	@targets=$$($(RUN) -m reproductions list | sed -n 's/^\([a-zA-Z0-9]*-$@\) .*/\1/p'); status=0; \
	$(RUN) -m reproductions run $$targets $(NARROW) $(MEASURE) || status=$$?; test $$status -ge 2 && exit $$status; \
	$(RUN) -m reproductions show $$targets $(NARROW) --format $(FORMAT) || status=$$?; exit $$status

clean:  ## remove caches (records and .venv stay)
	rm -rf .cache .pytest_cache .ruff_cache

SHOW = $(RUN) -m reproductions show $(@:-render=) $(NARROW) --format $(FORMAT)
FETCH = $(RUN) -m reproductions fetch $(@:-fetch=) $(foreach m,$(MODEL),--model $(m)) $(if $(REMOVE),--remove $(REMOVE))
# A failed cell must not hide the table: show what there is, then fail.
RUN_AND_SHOW = status=0; $(RUN) -m reproductions run $@ $(NARROW) $(MEASURE) || status=$$?; \
	test $$status -ge 2 || $(SHOW) || status=$$?; exit $$status

table%-render figure%-render: $(STAMP)
	@$(SHOW)

table%-fetch figure%-fetch: $(STAMP)
	@$(FETCH)

table%: $(STAMP)
	@$(RUN_AND_SHOW)

grid: $(STAMP)  ## ours: every metric with every repair, one-shot and iterative (a target like a table)
	@$(RUN_AND_SHOW)

grid-render: $(STAMP)
	@$(SHOW)

grid-fetch: $(STAMP)
	@$(FETCH)

figure%: $(STAMP)
	@$(RUN_AND_SHOW)
