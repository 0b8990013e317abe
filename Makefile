# `make help` lists the targets. Everything stays inside this directory but the built llama.cpp wheel, which is kept
# in the user's cache (XDG_CACHE_HOME or ~/.cache, under cardcage/wheels) so that a second clone takes seconds.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The system's certificates are those that pip was told of too.
UV := $(BIN)/uv --system-certs
STAMPS := .stamps
MEMBERS := sdk core $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml platforms/*/pyproject.toml))
BUILD_WHEEL := platforms/llamacpp/src/cardcage_platform_llamacpp/build_wheel.py
# The clone's own data and models: a server that is already installed on this machine is not touched.
DATA := $(CURDIR)/.cardcage
STORE := $(DATA)/models
PROMPT ?= What is the capital of France?
SYSTEM ?= Answer in one short sentence.

export CARDCAGE_TEST_STORE ?= $(STORE)

# The compiler, the package downloads and the model download run side by side.
MAKEFLAGS += -j3
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help env model minilm genai peers demo test test-heavy check format wheels clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1#\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '#'

env: $(STAMPS)/env ## the environment .venv: llama.cpp wheel (built once), all members editable, tools

model: ## the SmolLM2 model (98 MB) into .cardcage/models
	@$(PYTHON) examples/models/fetch_smollm2.py --store "$(STORE)"

minilm: $(STAMPS)/packages ## MiniLM for ONNX Runtime (23 MB) and for llama.cpp (46 MB, made of 83 MB) into .cardcage/models
	@$(PYTHON) examples/models/fetch_minilm_onnx.py --store "$(STORE)"
	@$(BIN)/python examples/models/make_minilm_gguf.py --store "$(STORE)"

# Optional and heavy: PyTorch and more in an environment of their own, for minutes. Chat tests of platforms/onnx are skipped
# without this model.
genai: model $(STAMPS)/genai-packages ## SmolLM2 as an onnxruntime-genai model into .cardcage/models (needs 2 GB of packages)
	@$(STAMPS)/genai-venv/bin/python examples/models/make_smollm2_genai.py --store "$(STORE)" \
		--gguf "$(STORE)/llamacpp/cpu/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"

# Optional and heavy as well: what bench/embeddings.py compares with.
peers: $(STAMPS)/peers-packages ## sentence-transformers in an environment of its own, for bench/embeddings.py (needs 2 GB)
	@echo "python bench/embeddings.py --sentence-transformers $(STAMPS)/peers-venv/bin/python"

demo: env model ## everything from nothing to an answer on this CPU
	@export CARDCAGE_CONFIG=/dev/null CARDCAGE_DATA_DIR="$(DATA)" CARDCAGE_STORE="$(STORE)" CARDCAGE_PORT=0; \
	$(BIN)/cardcage serve > "$(DATA)/demo.log" 2>&1 & server=$$!; \
	trap 'kill $$server 2> /dev/null; wait $$server 2> /dev/null' EXIT; \
	until $(BIN)/cardcage ps > /dev/null 2>&1; do kill -0 $$server || { cat "$(DATA)/demo.log"; exit 1; }; sleep 0.1; done; \
	$(BIN)/cardcage run smollm2-135m "$(PROMPT)" --system "$(SYSTEM)" --temperature 0 --stats

test: env model minilm ## the normal test run
	@$(BIN)/python -m pytest

test-heavy: env model minilm ## what the normal run leaves out because it takes minutes
	@CARDCAGE_HEAVY=1 $(BIN)/python -m pytest -m heavy

check: env ## what CI checks before the tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: env ## let ruff format and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

wheels: env ## wheels of all members into dist
	@for member in $(MEMBERS); do $(UV) build --quiet --wheel --out-dir dist $$member || exit 1; done; ls dist

clean: ## remove the environment, wheels and caches, but not .cardcage and the kept llama.cpp wheel
	@rm -rf $(VENV) $(STAMPS) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find sdk core plugins platforms examples tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit("Cardcage needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	@mkdir -p $(STAMPS)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@touch $@

$(STAMPS)/wheel: $(BUILD_WHEEL)
	@mkdir -p $(STAMPS)
	@$(PYTHON) $(BUILD_WHEEL) > $@

$(STAMPS)/packages: $(STAMPS)/venv constraints.txt pyproject.toml $(MEMBERS:=/pyproject.toml)
	@$(UV) pip install --quiet --python $(BIN)/python -c constraints.txt $(foreach member,$(MEMBERS),-e $(member)) --group dev
	@touch $@

$(STAMPS)/genai-packages: examples/models/smollm2_genai_requirements.txt
	@mkdir -p $(STAMPS)
	@$(PYTHON) -m venv $(STAMPS)/genai-venv
	@$(STAMPS)/genai-venv/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(STAMPS)/peers-packages: bench/embedding_peers_requirements.txt
	@mkdir -p $(STAMPS)
	@$(PYTHON) -m venv $(STAMPS)/peers-venv
	@$(STAMPS)/peers-venv/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(STAMPS)/env: $(STAMPS)/packages $(STAMPS)/wheel
	@$(UV) pip install --quiet --python $(BIN)/python -c constraints.txt "$$($(PYTHON) $(BUILD_WHEEL))"
	@touch $@
