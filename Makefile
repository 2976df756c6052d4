# torch and scikit-learn each bring an OpenMP pool. Idle threads of one spin by default, and take
# the cores from the other: 3 to 10 times slower.
export OMP_WAIT_POLICY = PASSIVE
# The networks of tests and examples are small: more threads than one take twice as long.
export OMP_NUM_THREADS ?= 1

PYTHON = python3
VENV = .venv
OLDEST = .venv-oldest
PEERS = .venv-peers
DATA_HOME = ../shared/data
RUN = $(VENV)/bin/python

# Fitted in a venv that has only the wheel and its dependencies, away from the sources.
define SMOKE_TEST
from importlib.resources import files
from sklearn.datasets import make_blobs
import skdeepcluster
assert (files("skdeepcluster") / "py.typed").is_file()
X, _ = make_blobs(60, 8, centers=3, random_state=0)
labels = skdeepcluster.SRKMeans(n_clusters=3, random_state=0).fit_predict(X)
assert set(labels) == {0, 1, 2}, labels
print("skdeepcluster", skdeepcluster.__version__, "fits from", skdeepcluster.__file__)
endef
export SMOKE_TEST

.PHONY: help venv install demo examples test coverage doctest lint format wheel test-oldest bench bench-peers clean distclean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(VENV)/.installed  ## .venv with the package (editable) and what the tests need
venv: install

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -c constraints.txt -e ".[test,plot]"
	@touch $@

demo: install  ## cluster handwritten digits, and draw what was found
	$(RUN) examples/plot_digits.py

examples: install  ## every example, its figure thrown away
	@set -e; figures=$$(mktemp -d); trap 'rm -rf "$$figures"' EXIT; \
	for script in examples/*.py; do echo "$$script"; $(RUN) "$$script" "$$figures/figure.png"; done

test: install  ## the short tests; all of them: .venv/bin/python -m pytest -m ""
	$(RUN) -m pytest

coverage: install  ## the short tests, with the lines that they miss
	$(RUN) -m pytest --cov

doctest: install  ## the examples in docstrings and in the README
	$(RUN) -m pytest --doctest-modules --doctest-glob=README.md skdeepcluster README.md

lint: install  ## ruff and mypy
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy

format: install  ## let ruff fix and format
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

wheel: install  ## build the wheel, and fit from it in a bare venv
	rm -rf build dist
	$(RUN) -m build --wheel
	@bare=$$(mktemp -d) && trap 'rm -rf "$$bare"' EXIT && set -ex && \
	$(RUN) -m venv "$$bare" && \
	"$$bare/bin/python" -m pip install -c constraints.txt dist/*.whl && \
	cd "$$bare" && bin/python -I -c "$$SMOKE_TEST"

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -c constraints-oldest.txt -e ".[test]"
	@touch $@

test-oldest: $(OLDEST)/.installed  ## the tests of estimators and caching under the oldest supported versions
	$(OLDEST)/bin/python -m pytest tests/test_estimators.py tests/test_memory.py tests/test_streaming.py

bench: install  ## time and memory beside bare torch loops (10 minutes); DATA_HOME=folder of the data sets
	OMP_NUM_THREADS=1 $(RUN) benchmarks/speed.py --data-home $(DATA_HOME)
	OMP_NUM_THREADS=1 $(RUN) benchmarks/memory.py --data-home $(DATA_HOME)

# torchvision's own requirements would replace torch by a build for CUDA.
$(PEERS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install -c constraints.txt -e . pandas tqdm matplotlib
	$(PEERS)/bin/python -m pip install --no-deps torchvision==0.28.0 clustpy==0.0.3
	@touch $@

bench-peers: $(PEERS)/.installed  ## whole fits beside ClustPy, in a venv of their own (40 minutes)
	OMP_NUM_THREADS=1 $(PEERS)/bin/python benchmarks/peers.py --data-home $(DATA_HOME)

clean:  ## remove what was built and cached, but not the venvs
	rm -rf build dist *.egg-info .coverage htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name '.venv*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove the venvs
	rm -rf $(VENV) $(OLDEST) $(PEERS)
