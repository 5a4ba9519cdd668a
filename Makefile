# The two commands of the README, and JupyterLab. POSIX sh, GNU make 3.81 or newer.
#
# One environment serves all three: the tests are a tenth of it (torch is the rest), and what is
# tested is then exactly what made the report. pip's own configuration decides where packages come from.

PYTHON ?= python3
TRAIN_PYTHON ?=
CASE ?= case
HASHES ?= yes

BIN := .venv/bin
READY := .venv/.installed
# Several tests at a time; what is made once for many of them stays together (tests/groups.py).
SIDE_BY_SIDE := -n auto --dist loadgroup --no-loadscope-reorder
# Collecting all tests takes longer than finding the files that hold one of these.
SERIAL = $$(grep -rl --include='test_*.py' 'mark\.serial' tests)
QUICK := tests/packaging/test_house.py tests/case tests/causes tests/evidence tests/views -m "not slow and not long"
MADE_FROM := .venv/.made-from
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# Runs under whatever PYTHON names, so it must parse everywhere. Prints what .venv depends on: interpreter and folder.
define LOOK
import os, sys
name, version = sys.executable or "this Python", sys.version_info[:2]
if not (3, 10) <= version <= (3, 13):
    sys.exit("ncclkit needs Python 3.10 to 3.13, but %s is %d.%d: name another with PYTHON=/path/to/python3." % ((name,) + version))
try:
    import ensurepip, venv
except ImportError:
    sys.exit("%s cannot make environments: install its venv package (Debian: python3-venv), or name another with PYTHON=." % name)
print("Python %d.%d.%d of %s, in %s" % (sys.version_info[:3] + (sys.base_prefix, os.getcwd())))
endef
export LOOK
export REFUSED := The packages of constraints.txt could not be installed as they were tested. Where your index builds its own: make HASHES=no takes them by version.

.PHONY: help report check style test test-all lab wheelhouse install FORCE

help:
	@echo 'make report   facts and test of this machine as one HTML file: $(CASE)/report.html'
	@echo 'make check    style, types and the quick tests'
	@echo 'make test     style, types and the tests, but those that are long by nature'
	@echo 'make test-all   and those, too: exam parity, fuzz, a thousand ranks, every notebook in a browser'
	@echo 'make install  only .venv with the packages'
	@echo 'make wheelhouse   all packages for hosts without internet, in ./wheelhouse'
	@echo 'make lab      JupyterLab: name the logs of a job, a running job, or test this machine'
	@echo
	@echo 'PYTHON=$(PYTHON)   interpreter of the workbook, 3.10 to 3.13; .venv is made from it'
	@echo 'TRAIN_PYTHON=$(TRAIN_PYTHON)   interpreter that trains, for the live test; empty means that of the workbook'
	@echo 'HASHES=$(HASHES)   files of packages must be those that were tested, by SHA-256; no: any build of their versions'
	@echo 'CASE=$(CASE)   folder that the report is kept in; notebooks of make lab use ./case'

report: $(READY)
	@$(BIN)/ncclkit report --case "$(CASE)" $(if $(TRAIN_PYTHON),--train-python "$(TRAIN_PYTHON)")

check: style
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) $(QUICK)

test: style
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) --durations=10 -m 'not serial and not long'

test-all: style
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) --durations=10 -m 'not serial'
	$(BIN)/python -m pytest -q -m serial $(SERIAL)

style: $(READY)
	$(BIN)/ruff check .
	MYPY_NUM_WORKERS=auto $(BIN)/mypy

# Nothing but the environment; every other target makes it, too, where it is missing.
install: $(READY)

lab: $(READY)
	@NCCLKIT_TRAIN_PYTHON="$(TRAIN_PYTHON)" $(BIN)/ncclkit open 00_start_here

# Where there is internet, for hosts of the same system and Python that have none: README says how they install from it.
wheelhouse:
	@"$(PYTHON)" -c "$$LOOK"
	@mkdir -p wheelhouse && sed -e '/^ /d' -e 's/ \\$$//' constraints.txt > wheelhouse/constraints.txt
	"$(PYTHON)" -m pip wheel -q --disable-pip-version-check --wheel-dir wheelhouse '.[fast,mcp,dask]' -c wheelhouse/constraints.txt

# Looked at on every call, but only written when it changes: make then rebuilds .venv when PYTHON or the folder is another.
$(MADE_FROM): FORCE
	@command -v "$(PYTHON)" >/dev/null || { echo "No '$(PYTHON)' here: name a Python 3.10 to 3.13 with PYTHON=/path/to/python3." >&2; exit 1; }
	@from=$$("$(PYTHON)" -c "$$LOOK") || exit 1; \
	if [ "$$from" != "$$(cat $@ 2>/dev/null)" ]; then \
		echo "Making .venv ($$from)"; \
		"$(PYTHON)" -m venv --clear .venv && echo "$$from" > $@; \
	fi

# Twice: what is pinned, each file by its SHA-256 and nothing beside it; then this checkout, and torch, whose build is the
# user's choice and which brings CUDA along.
$(READY): $(MADE_FROM) pyproject.toml constraints.txt
	@echo 'Installing ncclkit and its tests into .venv (some minutes and 2 GB the first time)'
	@sed -e '/^torch==/d' constraints.txt > .venv/hashed.txt
	@sed -e '/^ /d' -e 's/ \\$$//' constraints.txt > .venv/pinned.txt
ifneq ($(HASHES),no)
	@$(PIP) --no-deps --require-hashes -r .venv/hashed.txt || { echo "$$REFUSED" >&2; exit 1; }
endif
	@$(PIP) $(if $(filter no,$(HASHES)),,--no-build-isolation) -e '.[fast,test]' -c .venv/pinned.txt
	@touch $@
