# Two commands set everything up on a fresh machine: `make quickstart` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv where it is there: faster, and with TORCH_BACKEND=auto it takes the CPU build of torch on a machine without a GPU;
# `make UV=` takes pip all the same
UV := $(shell command -v uv)
TORCH_BACKEND ?= auto
INSTALL := $(if $(UV),uv pip install --python $(BIN)/python --torch-backend=$(TORCH_BACKEND),$(BIN)/python -m pip --disable-pip-version-check install)
PIP := $(INSTALL) --quiet --constraint constraints.txt

ENGINES := .venv-engines
TRANSFORMERS := .venv-transformers
LITGPT := .venv-litgpt
TRACKERS := .venv-trackers

.PHONY: quickstart test checks suite size long explore chaos engines accuracy detectors docs screenshots clean

quickstart: $(VENV)/core.stamp
	$(BIN)/advisor quickstart

# side by side: mypy takes half a minute of one core, and a test that waits leaves its own to it
test: $(VENV)/dev.stamp
	$(MAKE) --no-print-directory --jobs 2 suite checks

checks: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python benchmarks/size.py

# AGAIN=--last-failed runs only what failed before, also of the long suites
# three workers on two cores, since tests also wait; each has a third of the files and takes from the others' when it is
# done, so that fixtures of a file are made once
suite: $(VENV)/dev.stamp
	$(BIN)/pytest $(AGAIN) -n 3 --dist worksteal -q -m 'not long' --ignore tests/engines --ignore tests/chaos

# lines of each room against its ceiling, which is lowered in each commit that shrinks a room: `benchmarks/size.py --lower`
size: $(VENV)/core.stamp
	$(BIN)/python benchmarks/size.py

# whole stories: the quickstart, and the app in a browser from a budget to a scored run
long: $(VENV)/dev.stamp
	$(BIN)/pytest $(AGAIN) -n 3 --dist worksteal -q -m long --ignore tests/engines --ignore tests/chaos
	$(if $(AGAIN),,$(MAKE) --no-print-directory explore)

# property tests with new cases each time, for some minutes. It decides nothing: what it finds is printed and repeated from
# .hypothesis until it is mended; it then stands above the test as `@example`, which `make test` runs
EXPLORE_SECONDS ?= 240
explore: $(VENV)/dev.stamp
	-timeout --signal=INT --kill-after=30 $(EXPLORE_SECONDS) $(BIN)/pytest --hypothesis-profile explore -n 3 -q -m hypothesis \
		--ignore tests/engines --ignore tests/chaos

# runs killed, damaged and moved at random moments; the page is written anew (KILLS=200 is what it is published with)
KILLS ?= 200
chaos: $(VENV)/dev.stamp
	ADVISOR_CHAOS_KILLS=$(KILLS) ADVISOR_CHAOS_REPORT=docs/reliability.md $(BIN)/pytest $(AGAIN) -q tests/chaos

# exports and runs elsewhere, by a Slurm and an sshd of this machine (Debian: slurm-wlm munge openssh-server), and exports
# read by the engines' own libraries; models as Hugging Face's transformers computes them
engines: $(VENV)/dev.stamp $(ENGINES)/stamp $(TRANSFORMERS)/stamp $(LITGPT)/stamp $(TRACKERS)/stamp
	$(BIN)/pytest $(AGAIN) -n 2 --dist loadfile -q -rs tests/engines

# its hub is older than TRL's and than constraints.txt has it: an environment of its own. litgpt 0.5.13 imports requests and does not name it
$(LITGPT)/stamp: $(VENV)/core.stamp
	$(PYTHON) -m venv $(LITGPT)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(LITGPT)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/layered.pth"
	-$(LITGPT)/bin/python -m pip --disable-pip-version-check install --quiet 'litgpt==0.5.13' 'huggingface-hub<1.4' requests
	@touch $@

# where runs are tracked; each may be missing
$(TRACKERS)/stamp: $(VENV)/core.stamp
	$(PYTHON) -m venv $(TRACKERS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(TRACKERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/layered.pth"
	for library in wandb trackio mlflow; do $(TRACKERS)/bin/python -m pip --disable-pip-version-check install --quiet $$library || true; done
	@touch $@

accuracy: $(VENV)/core.stamp
	$(BIN)/python benchmarks/search_speed.py --record
	$(BIN)/python benchmarks/accuracy.py

# how right each detector is on the real logs beside the project; skipped in words where there are none
detectors: $(VENV)/core.stamp
	$(BIN)/python benchmarks/detectors.py

docs: $(VENV)/core.stamp
	$(BIN)/python -m benchmarks.reference docs/cli.md
	$(BIN)/python -m benchmarks.reference docs/advisor.1
	$(BIN)/python -m benchmarks.reference llms.txt
	$(BIN)/python -m benchmarks.document_types
	$(BIN)/python -m benchmarks.reference docs/findings.md

# pictures of the pages, from a run that is launched for them; the folder has every page in both themes as well. The
# README's of Runs is of that page after `make quickstart`: the run here is planned by another machine's calibration
screenshots: $(VENV)/dev.stamp
	ADVISOR_SCREENSHOTS=build/screenshots $(BIN)/pytest -q tests/ui/test_end_to_end.py
	mkdir -p docs/images
	for page in plan watch analyze; do cp build/screenshots/readme-$$page.png docs/images/$$page.png; done

clean:
	rm -rf $(VENV) $(ENGINES) $(TRANSFORMERS) $(LITGPT) $(TRACKERS) build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find advisor trainer tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# torch by itself first: it is by far the largest, and its pin decides what everything else resolves to
$(VENV)/core.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": try `make PYTHON=python3.12 ...`")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): torch first. About 1.4 GB with the CPU build of torch, 6 GB with the CUDA build that PyPI gives on Linux"
	$(PIP) torch
	$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	$(PIP) --editable '.[train,app,dev]'
	@touch $@

# far from our own environment: 150 packages that pin each other; without them those tests are skipped
$(ENGINES)/stamp:
	$(PYTHON) -m venv $(ENGINES)
	-$(ENGINES)/bin/python -m pip --disable-pip-version-check install --quiet 'skypilot==0.14.*' 'dstack==0.22.*' 'kubeflow-trainer-api==2.3.*'
	@touch $@

# over our own environment, whose torch and tokenizers it takes
$(TRANSFORMERS)/stamp: $(VENV)/core.stamp
	$(PYTHON) -m venv $(TRANSFORMERS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(TRANSFORMERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/layered.pth"
	-$(TRANSFORMERS)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt 'transformers==5.*'
	-$(TRANSFORMERS)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt 'trl==1.*' 'lightning==2.*' 'jsonargparse[signatures]'
	-$(TRANSFORMERS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps 'verl==0.9.*'
	@touch $@
