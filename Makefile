# Every target does its own set-up. PYTHON is the interpreter that makes the environment (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first: whatever depends on it then installs nothing of CUDA. The CPU build, unless TORCH_INDEX says otherwise.
TORCH := torch==2.13.0
TORCH_INDEX ?=
# the tables of published runs
MEASURED ?= ../shared/measured
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo test check golden validate clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) --editable '.[train]' --group dev
	touch $@

demo: setup
	rm -rf demo
	$(BIN)/perfgen detect
	$(BIN)/perfgen init demo --sample --measure --seq-len 256 --global-batch 8 --max-steps 60
	@echo "predicted against measured: demo/report.html"

# files side by side: several wait for processes of their own
test: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

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
	$(BIN)/python benchmarks/validate.py $(MEASURED)

clean:
	rm -rf $(VENV) demo dist build
