# Everything a person or CI needs. `make demo` and `make test` set themselves up.
#
# On Linux, PyPI's default torch brings CUDA along. To install the CPU build instead, point pip at
# PyTorch's CPU wheels (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS are honoured).

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo serve test test-gpu check format bench docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt docker/retriever/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[encode,otel,dev]' --requirement docker/retriever/requirements.txt
	touch $@

demo: $(READY)  ## start the service, ingest a corpus, rerank, print the answers
	$(BIN)/maxsim demo

serve: $(READY)  ## run the service with the embedded encoder
	$(BIN)/maxsim serve --encoder minilm

test: $(READY)
	$(BIN)/python -m pytest

test-gpu: $(READY)  ## on a machine with a CUDA GPU: the tests that need one
	$(BIN)/python -m pytest -m gpu

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## time the kernels beside other libraries on this machine
	$(BIN)/python -m pip install --quiet --constraint constraints.txt '.[bench]'
	$(BIN)/maxsim bench cpu

docs: $(READY)  ## print the generated parts of the documentation anew
	$(BIN)/maxsim settings yaml > config/default.yaml
	$(BIN)/python docs/generate.py
	$(BIN)/python config/grafana/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info service/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
