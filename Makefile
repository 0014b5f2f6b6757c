# What people type in a checkout. PYTHON chooses the interpreter (3.10 or newer); PIP_ARGS
# goes to every pip, say PIP_ARGS="--extra-index-url URL" for another source of torch.
PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
# make image: what it is built on, whose it is (never root's), what it is called
BASE_IMAGE ?= pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
RUNNER_UID ?= $(shell id -u | sed 's/^0$$/1000/')
RUNNER_GID ?= $(shell id -g | sed 's/^0$$/1000/')
COMPILER ?=
IMAGE ?= runner:$(RUNNER_UID)

venv := .venv/bin/python
families := mujoco,atari,box2d,teams,video
inputs := setup.cfg pyproject.toml constraints.txt
pip := $(venv) -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
rig := RUNNER_RIG_PIP_ARGS="$(PIP_ARGS)" $(venv) -m tests.rig

.PHONY: help demo test check docs reference faults bench bench-agents slow compat gpu image rig-up rig-down clean-rig clean

help:
	@echo 'make demo       train an agent on this machine, from nothing'
	@echo 'make test       everything that this machine can test; installs what that needs'
	@echo 'make check      ruff, mypy and the unit tests, in seconds'
	@echo 'make docs       the documentation as a site, in build/site'
	@echo 'make reference  docs/reference anew, from the code'
	@echo 'make faults     every fault at every phase of a run (root); writes docs/faults.md'
	@echo 'make bench      figures, as ratios of pairs measured side by side (root: also over ssh)'
	@echo 'make bench-agents  steps per CPU second beside CleanRL and Stable-Baselines3'
	@echo 'make slow       what the agents reach: all recipes over seeds, an Atari curve (hours)'
	@echo 'make compat     the agents with the torch versions of the image pins (some GB)'
	@echo 'make gpu        on a machine with an NVIDIA GPU: what only that can show'
	@echo 'make image      the image of a worker for your own uid, to run by hand (docs/image.md)'
	@echo 'make rig-up     start the test hosts and leave them running (root); rig-down, clean-rig'
	@echo 'make clean      remove the environment .venv'

# The Python environment: .demo to run, .test to test, .dev to check.

$(venv):
	$(PYTHON) -m venv .venv

.venv/.demo: $(venv) $(inputs)
	@echo 'installing torch and the rest into .venv; this takes some minutes'
	@$(pip) -e '.[agents,plot]'
	@touch $@

.venv/.docs: $(venv) $(inputs)
	@$(pip) -e '.[docs]'
	@touch $@

.venv/.test: $(venv) $(inputs)
	@echo 'installing torch and the rest into .venv; this takes some minutes'
	@$(pip) -e '.[agents,$(families),plot,test]'
	@touch $@ .venv/.demo

.venv/.dev: $(venv) $(inputs)
	@$(pip) -e '.[agents,$(families),plot,test,dev]'
	@touch $@ .venv/.test .venv/.demo

demo: .venv/.demo
	@sh docs/demo.sh

# The base image of the Docker tests is made while pip and the first tests run.
test: $(venv)
	@$(rig) packages
	@$(rig) prepare >.venv/prepare.log 2>&1 & maker=$$!; \
	trap 'kill $$maker 2>/dev/null || true' EXIT INT TERM; \
	$(MAKE) --no-print-directory .venv/.test && $(venv) -m pytest -n 2 $(PYTEST_ARGS)

check: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy runner provisioning/worker tests/rig tests/helpers tests/faults tests/conftest.py
	$(venv) -m pytest -q tests/unit --ignore-glob='*test_agent_*'

# To be read from the disk, too: build/site/index.html. A link that leads nowhere fails.
docs: .venv/.docs reference
	$(venv) -m sphinx -c docs/site -d build/doctrees -W --keep-going -q docs build/site
	@echo 'build/site/index.html'

reference: .venv/.docs
	@$(venv) docs/site/reference.py

# tests/faults/cells.py lists them; make test tries a fixed sample.
faults: .venv/.test
	@$(rig) packages
	RUNNER_FAULTS_DOCUMENT=docs/faults.md RUNNER_CUTS_DOCUMENT=docs/cuts.md $(venv) -m pytest tests/faults --slow -n 2 $(PYTEST_ARGS)

# docs/figures.md says what each measures; all numbers go to results/bench/.
bench: .venv/.test
	$(venv) benchmarks/bench_cli.py
	$(venv) benchmarks/bench_start.py
	$(venv) benchmarks/bench_cancel.py
	$(venv) benchmarks/bench_dispatch.py
	$(venv) benchmarks/bench_views.py
	$(venv) benchmarks/bench_completing.py
	@$(rig) packages
	$(venv) benchmarks/over_ssh.py

# The rivals are not installed: benchmarks/bench_agents.py says how, and leaves out what is not there.
bench-agents: .venv/.test
	$(venv) benchmarks/bench_agents.py

# Stopped and started again, it goes on with the seed it was at.
slow: .venv/.test
	nice -n 5 $(venv) benchmarks/bench_returns.py
	nice -n 5 $(venv) benchmarks/bench_curve.py

# The agents with the older torch versions of the image pins; some GB, once.
compat:
	$(PYTHON) benchmarks/compat.py

gpu: .venv/.demo
	$(venv) benchmarks/gpu_check.py

# COMPILER=1 adds what torch.compile needs. The last line is the image's name.
image:
	@$(PYTHON) -c 'import sys; from runner import content; sys.stdout.buffer.write(content.image_context())' \
		| docker build --build-arg BASE_IMAGE='$(BASE_IMAGE)' --build-arg RUNNER_UID='$(RUNNER_UID)' \
			--build-arg RUNNER_GID='$(RUNNER_GID)' --build-arg RUNNER_COMPILER='$(COMPILER)' \
			--tag '$(IMAGE)' - >&2
	@echo '$(IMAGE)'

rig-up: $(venv)
	@$(rig) packages
	@$(rig) up

rig-down: $(venv)
	@$(rig) down

clean-rig: $(venv)
	@$(rig) clean

clean:
	rm -rf .venv
