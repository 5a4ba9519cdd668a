"""The map of the package and its words, held by a machine: floors, circles, names, and what a user reads.

Each test gathers all violations of its kind before it fails.
"""

import argparse
import ast
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import pytest

import ncclkit
from tests.packaging.imports import Module, Package
from tests.packaging.project import ROOT

FLOORS = {
    1: ("agent",),
    2: ("core",),
    3: ("evidence", "analysis", "report"),
    4: ("causes", "live"),
    5: ("experiments",),
    6: ("lab",),
    7: ("views", "cli"),
}
"""The map: each package imports only from lower floors. docs/design.md shows it."""

ENTRIES = 13
"""Most entries of the package's folder, besides the three files of the root itself."""
OF_THE_ROOT = {"__init__.py", "__main__.py", "py.typed"}


@cache
def ours() -> Package:
    return Package(ROOT / "ncclkit")


@cache
def our_tests() -> Package:
    return Package(ROOT / "tests")


def none(found: Iterable[object]) -> None:
    """Fail with all violations, one a line; an assertion would shorten the list."""
    if all_of_them := [str(one) for one in found]:
        pytest.fail("\n".join([f"{len(all_of_them)} violations", *all_of_them]), pytrace=False)


# ---------------------------------------------------------------- floors


def test_the_map_names_the_packages_that_there_are():
    named = {package for packages in FLOORS.values() for package in packages}
    units = set(ours().units)
    none(
        [f"{unit} has no floor" for unit in sorted(units - named)]
        + [f"{unit} is missing" for unit in sorted(named - units)]
    )


def test_every_import_goes_to_a_lower_floor():
    floors = {package: floor for floor, packages in FLOORS.items() for package in packages}
    none(ours().upward(floors))


def test_modules_import_each_other_in_no_circle():
    none(" <-> ".join(circle) for circle in ours().circles())


def test_the_root_holds_about_a_dozen_entries():
    entries = sorted(
        path.name
        for path in (ROOT / "ncclkit").iterdir()
        if path.name not in OF_THE_ROOT and path.name != "__pycache__" and not path.name.startswith(".")
    )
    assert len(entries) <= ENTRIES, entries


def test_every_public_name_leads_to_what_it_names():
    none(name for name in ncclkit.__all__ if getattr(ncclkit, name, None) is None)


def test_no_two_public_classes_have_one_name():
    none(f"{name}: {', '.join(modules)}" for name, modules in ours().doubled_classes().items())


# ---------------------------------------------------------------- words of the code

MODULE, CLASS, FUNCTION, PARAMETER, CONSTANT, FIELD, OPTION, PROSE = kinds = (
    "module", "class", "function", "parameter", "constant", "field", "option", "prose"
)  # fmt: skip
NAMES = frozenset(kinds) - {PROSE}
EVERYWHERE = frozenset(kinds)
NAMED = frozenset({MODULE, CLASS, FUNCTION})


@dataclass(frozen=True)
class Retired:
    """Words that no identifier of a kind may hold, as whole parts: ``way`` is in ``slow_way``, not in ``gateway``."""

    words: str
    use: str
    kinds: frozenset[str] = NAMES
    allowed: str = r"(?!)"
    """A pattern over "kind dotted.name" of the uses that stay."""

    def holds(self, kind: str, name: str) -> bool:
        """Whether this identifier, dotted, uses one of the words in a way that is retired."""
        if kind not in self.kinds or not set(self.words.split()).intersection(parts(name.rpartition(".")[2])):
            return False
        return not re.search(self.allowed, f"{kind} {name}")


RETIRED = (
    Retired("pretend pretended", "simulated hosts", EVERYWHERE),
    Retired("networks", "simulated hosts", frozenset({MODULE})),  # elsewhere the plural of network
    Retired("split", "simulate_hosts", frozenset({PARAMETER, FIELD, OPTION})),  # split() is the verb for text
    Retired("ladder rung rungs climb climbs climbed", "stages, bisection", EVERYWHERE),
    # `stages` is new for `ladder` and old for a staged run, so no machine can tell; in prose these are plain English.
    Retired("narrow narrowed company", "bisect, interaction"),
    Retired("way ways", "path", allowed=r"\.IN_THE_WAY$"),  # an idiom: whoever holds what we need
    Retired("looks", "checks that start no rank, resource checks"),
    Retired("limits", "resource checks", frozenset({MODULE}), r"\.(facts|breaks|faults)\."),  # there: ulimits
    Retired("subject", "baseline run"),
    Retired("remedy remedies", "fixes", EVERYWHERE),
    Retired("outcomes", "comparison", frozenset({MODULE})),  # an experiment has outcomes, in plain English
    Retired("trial trials", "experiment records; session"),
    Retired("talk", "transport"),
    # NCCL says peer; a pair of ranks is a pair; a program answers. Only the agent's files were called so.
    Retired("peer answer pair", "worker, server, client", frozenset({MODULE})),
    Retired("askable", "options", EVERYWHERE),
    Retired("intend intended", "JobSpec, set_job_spec"),
    Retired("whereabouts", "host attribution", EVERYWHERE),
    Retired("tally", "summary", EVERYWHERE),
    Retired("voice voices", "speakers"),
    Retired("pace", "progress", NAMED),  # a constant or field may hold a speed
    Retired("lane lanes", "deduplication", NAMED | {PARAMETER}),  # constants: PCIe has lanes
    Retired("alarm", "unknown errors"),
    Retired("told", "user notes"),
    Retired("hearsay", "reported by others", EVERYWHERE),
    Retired("gist", "excerpt", EVERYWHERE),
    Retired("outlived", "recovered", EVERYWHERE),
    Retired("crowd", "CPU scheduling", EVERYWHERE),
    # load() is a verb, also as load_state_dict and pickle's persistent_load; the kernel's figure is its load average.
    Retired("load", "utilization", NAMES - {OPTION}, r"^function .*\.(_?load\w*|persistent_load)$|load_average"),
    Retired("strips", "telemetry"),
    Retired("strip", "telemetry", allowed=r"^function .*\.strip_(?!view)\w+$"),  # the verb: strip_ansi
    Retired("blackbox fly", "crash handler, run", EVERYWHERE),
    # `fault` and `faults` are the words for what the lab injects.
    Retired("breaks", "faults", frozenset({MODULE, OPTION})),  # elsewhere the verb: breaks a rule
    # p2p_broken is the id of a cause, a value of `diagnose --json`; elsewhere the adjective.
    Retired("broken", "faults", frozenset({MODULE, CLASS}), r"\.p2p_broken$"),
    Retired("mend mends mended", "fix", EVERYWHERE),
    Retired("guilty", "faulty rank", EVERYWHERE),
    Retired("rehearse rehearsed rehearsal", "scaling run", EVERYWHERE),
    Retired("loading", "data-loader sweep"),
    Retired("resumed", "resume analysis"),
    Retired("scene", "rank states"),
    Retired("story stories", "timeline", allowed=r" ncclkit\.(agent|lab)\."),  # the five stories of the course stay
    Retired("endings", "exit status"),
    Retired("ending", "exit status", NAMED),
    Retired("reached", "progress", NAMED),
    Retired("conceal alias", "anonymize"),
    Retired("normal", "reference", frozenset({MODULE})),  # elsewhere the adjective
    Retired("forms", "normalizers", frozenset({MODULE}), r" ncclkit\.views\."),  # there: what a user fills in
    Retired("ail ails", "symptom", EVERYWHERE),
    Retired("lame", "slow ranks", EVERYWHERE),
    Retired("say", "summary", allowed=r"^field .*\.Finding\.say$"),  # a key of `diagnose --json`, schema 1
    # As options only: a wait has a deadline, and NCCL connects ranks via a transport.
    Retired("largest", "--max-bytes", frozenset({OPTION})),
    Retired("deadline", "--timeout", frozenset({OPTION})),
    Retired("via", "--remote-command", frozenset({OPTION})),
)
"""Left column of the vocabulary → right column, with the kinds of names that each row holds for."""

HALF_SENTENCES = frozenset("said told tell beside apart odd crowds along climbed look looks ail mended".split())

RETIRED_VALUES = {
    "told": "evidence",
    "moves": "verdict changes",
    "lead": "coordinator",
    "watch.jsonl": "telemetry.jsonl",
}
"""Strings that were values, keys or file names as a whole."""


def parts(identifier: str) -> list[str]:
    """The words of an identifier in lower case: ``read_HTTPLog`` → read, http, log."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def identifiers(module: Module) -> Iterator[tuple[str, str, int]]:
    """Kind, dotted name and line of the names that a module offers: public ones, and its own file name."""
    yield MODULE, module.name, 1
    yield from members(module.tree.body, module.name, CONSTANT)


def members(body: list[ast.stmt], within: str, value: str) -> Iterator[tuple[str, str, int]]:
    """The same for what a module or a class defines; `value` is what an assignment makes there."""
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from ((value, f"{within}.{name}", node.lineno) for name in names if not name.startswith("_"))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield CLASS, f"{within}.{node.name}", node.lineno
            yield from members(node.body, f"{within}.{node.name}", FIELD)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            public = not node.name.startswith("_")
            if public:
                yield FUNCTION, f"{within}.{node.name}", node.lineno
            if public or node.name == "__init__":
                found = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                yield from ((PARAMETER, f"{within}.{node.name}.{one.arg}", one.lineno) for one in found)


def functions(module: Module) -> Iterator[tuple[str, int]]:
    """Dotted name and line of every function, also private and nested ones: their callers read these names, too."""
    for node in module.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{module.name}.{node.name}", node.lineno


def retired(kind: str, name: str) -> str:
    """The word to use instead, "" for a name that may stay."""
    return next((row.use for row in RETIRED if row.holds(kind, name)), "")


@pytest.mark.parametrize("kind", [MODULE, CLASS, FUNCTION, PARAMETER, CONSTANT, FIELD])
def test_no_public_name_holds_a_retired_word(kind):
    none(
        f"{name} (line {line}): {use}"
        for module in ours().modules.values()
        for found, name, line in identifiers(module)
        if found == kind and (use := retired(kind, name))
    )


def test_no_function_is_named_by_half_a_sentence():
    """In prose these are plain English; as the whole name of a function they say nothing."""
    none(
        f"{name} (line {line})"
        for package in (ours(), our_tests())
        for module in package.modules.values()
        for name, line in functions(module)
        if name.rpartition(".")[2].strip("_") in HALF_SENTENCES
    )


def test_no_test_is_named_by_a_retired_word():
    none(
        f"{name} (line {line}): {use}"
        for module in our_tests().modules.values()
        for name, line in functions(module)
        if (use := retired(PROSE, name))
    )


def test_no_value_is_a_retired_word():
    none(
        f"{module.name}:{node.lineno} {node.value!r}: {RETIRED_VALUES[node.value]}"
        for module in ours().modules.values()
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in RETIRED_VALUES
    )


class Parsed(Exception):
    """Carries the parser of the command out of it, before anything runs."""


def command(monkeypatch) -> argparse.ArgumentParser:
    """The parser that ``ncclkit`` makes, wherever it makes it."""

    def stop(parser, *_):
        raise Parsed(parser)

    from ncclkit import cli

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", stop)
    with pytest.raises(Parsed) as caught:
        cli.main([])
    return caught.value.args[0]


def options(parser: argparse.ArgumentParser, verb: str = "") -> Iterator[tuple[str, str]]:
    """Verb, and a name that a user types or reads there: options, values to choose from, placeholders."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name, name
                yield from options(below, name)
            continue
        yield from ((verb, text) for text in action.option_strings or [action.dest])
        yield from ((verb, str(choice)) for choice in action.choices or ())


def test_no_option_is_a_retired_word(monkeypatch):
    found = set(options(command(monkeypatch)))
    assert ("diagnose", "--json") in found  # so that an empty walk is no proof
    none(sorted(f"{verb} {name}: {use}" for verb, name in found if (use := retired(OPTION, name))))


# ---------------------------------------------------------------- words that a user reads

PHRASES = (
    (r"\b(falls?|fell|fallen) silent\b", "stopped logging"),
    (r"\b(never|who|that|rank|ranks|it|they) spoke\b|\bspoke last\b", "logged"),
    (r"\b[Ll]ast words?\b", "last log line"),
    (r"\bin vain\b", "timed out waiting"),
    # Slurm's own word for what a job was granted stays.
    (r"(?<!job's )(?<!Slurm's )\b[Tt]ime limits?\b(?! of (the|a|its) (job|allocation|partition))", "timeout"),
    (r"\bname( of \S+)? leads? to\b|\bleads? to (loopback|127\.|each host|\{)", "resolves to"),
    (r"\bthere are \S+ sends? and\b", "Rank 2 waits in recv from rank 3, which posted no matching send"),
    (r"\bLooked, and it is not there\b", "30 checks passed"),
    (r"\bCould not look\b", "Not evaluated: evidence missing"),
    (r"\bcould not be asked\b", "unreachable"),
    (r"\b[Pp]retended\b", "simulated"),
    (r"^Elements$", "Data type"),
    (r"^Variables$", "Environment variables"),
    (r"^Beside$", "Reference"),
    (r"^There, GB/s$", "Expected, GB/s"),
    (r"^for reading$", "info"),
    (r"\b(stands?|stood|standing) still\b", "stalls"),
    (r"\b[Ww]ays? between\b", "network paths"),
    (r"\b(end|ends|ended|ending) well\b", "succeeded"),
    (r"\b[Mm]end(s|ed|ing)?\b", "fix"),
    (r"\bTo decide:", "Next experiment:"),
    (r"\bapart by blanks\b", "space-separated"),
    (r"\ban unknown amount\b", "(leave out)"),
    (r"\bhas it judged\b", "A colleague can run `ncclkit diagnose FILE.tar.gz`"),
    (r"\b[Tt]he same eyes\b", "Example: diagnosing a recorded hang"),
    (r"\b[Ww]rong and certain\b", "no wrong diagnosis at `proven`"),
    (r"\b[Nn]obody asked\b", "fully automatic"),
    (r"\b[Nn]ewest CUDA\b", "CUDA supported by the driver"),
    # "there is no X", "it is no longer X" and comparisons are plain English.
    (r"(?<!here )(?<!there )\bis no (?!longer\b|more\b|less\b|\w+er\b)[a-z]\w*", "is not a"),
    # "4 ranks, of which 2 …" counts parts; the row means the pronoun.
    (r"(?<!\d )\bof which\b(?! (\{|\d|one|two|three|none|all|the first))", "whose"),
    (r"\btells\b(?![^.;:]{0,60}\bapart\b)", "says"),  # tell apart is plain English
    (r"\bwhom it takes\b", "(name the thing)"),
    (r"(?<![\w-])--split\b", "--simulate-hosts"),
    (r"(?<![\w-])--ladder\b", "--stages"),
    (r"(?<![\w-])--largest\b", "--max-bytes"),
    (r"(?<![\w-])--deadline\b", "--timeout"),
    (r"(?<![\w-])--via\b", "--remote-command"),
    (r"\bwatch\.jsonl\b", "telemetry.jsonl"),
    (r"\b(the|a|each|one) strips?\b", "telemetry"),
    (r"\b[Ll]adders?\b|\brungs?\b|\bclimb(s|ed|ing)?\b", "stages"),
    (r"\*\*Look\*\*|\bto look at\b|\blooks? at nothing\b", "Attach; read"),
)  # fmt: skip
"""What a user read → what to write. The names of the phases (hello, import, init) stay values of the protocol: a text
cannot be told from a value there, so whoever shows them maps them."""

ONE_OF = re.compile("|".join(f"(?P<p{number}>{pattern})" for number, (pattern, _) in enumerate(PHRASES)))
A_PATTERN = re.compile(r"\(\?|\\[bdsSwW]|\[\^")
"""Literals that look so are patterns over the text of other programs, which nobody can rename."""


def phrases(text: str) -> Iterator[tuple[int, str]]:
    """Each retired phrase in a text, also where it is broken over lines: its line, and what to write instead."""
    if not ONE_OF.search(joined := " ".join(text.split())):
        return
    words = list(re.finditer(r"\S+", text))
    starts = list(accumulate((len(word[0]) + 1 for word in words), initial=0))
    for match in ONE_OF.finditer(joined):
        begin = words[bisect_right(starts, match.start()) - 1].start()
        yield text.count("\n", 0, begin) + 1, f"“{match[0]}”: {PHRASES[int(str(match.lastgroup)[1:])][1]}"


def spoken(module: Module) -> Iterator[tuple[int, str]]:
    """Line and text of the string literals of a module, formatted ones with {} where values go.

    Docstrings of private functions are left out: only we read them.
    """
    ours_alone = {
        id(node.body[0].value)
        for node in module.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("_")
        if isinstance(node.body[0], ast.Expr)
    }
    formatted = [node for node in module.nodes if isinstance(node, ast.JoinedStr)]
    pieces = {id(value) for node in formatted for value in node.values}
    for node in module.nodes:
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (pieces | ours_alone):
            yield node.lineno, node.value


def test_what_the_program_says_is_in_the_words_of_the_field():
    none(
        f"{module.path.relative_to(ROOT)}:{first + line - 1} {phrase}"
        for module in ours().modules.values()
        for first, text in spoken(module)
        if not A_PATTERN.search(text)
        for line, phrase in phrases(text)
    )


READ = ("text/plain", "text/markdown", "text/html")
"""What a user sees of an output."""


def notebooks() -> Iterator[tuple[str, str, str]]:
    """Where, type and text of every cell of every notebook, its id, and what it printed."""
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts:
            continue
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
            where = f"{path.relative_to(ROOT)}, cell {number}"
            yield where, cell["cell_type"], "".join(cell["source"])
            yield f"{where}, id", "id", cell["id"]
            for output in cell.get("outputs", ()):
                shown = [output.get("text", ""), *(output.get("data", {}).get(key, "") for key in READ)]
                yield f"{where}, output", "output", "\n".join("".join(text) for text in shown)


def test_notebooks_are_in_the_words_of_the_field():
    prose = [(where, text) for where, kind, text in notebooks() if kind in ("markdown", "id")]
    found = [
        f"{where} “{word}”: {use}"
        for where, text in prose
        for word in re.findall(r"[A-Za-z]+", re.sub(r"\]\([^)]*\)", "]", text))  # where a link goes is no prose
        if (use := retired(PROSE, word))
    ]
    found += [f"{where} {phrase}" for where, _, text in notebooks() for _, phrase in phrases(text)]
    assert prose
    none(found)


DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
"""What is read today; the change log also says what names were."""
QUOTED = re.compile(r"\]\([^)]*\)|`[^`]*`")
"""Targets of links, and code: names of faults and files stay."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_are_in_the_words_of_the_field(path):
    text = path.read_text(encoding="utf-8")
    found = [f"{path.name}:{line} {phrase}" for line, phrase in phrases(text)]
    found += [
        f"{path.name}:{line} “{word}”: {use}"
        for line, prose in enumerate(text.splitlines(), 1)
        for word in re.findall(r"[A-Za-z]+", QUOTED.sub("", prose))
        if (use := retired(PROSE, word))
    ]
    none(found)


# ---------------------------------------------------------------- the tables themselves


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (MODULE, "ncclkit.causes._slow_way"),
        (CLASS, "ncclkit.agent.load.Load"),
        (FUNCTION, "ncclkit.faults.break_it_and_mend"),
        (FUNCTION, "ncclkit.views.watch.strip_view"),
        (PARAMETER, "ncclkit.probe.plan.split"),
        (FIELD, "ncclkit.trials.Kept.say"),
        (CONSTANT, "ncclkit.networks.MENDS"),
        (OPTION, "--deadline"),
        (PROSE, "Rehearsal"),
    ],
)
def test_a_retired_word_is_found(kind, name):
    assert retired(kind, name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (FUNCTION, "ncclkit.core.storage.load"),
        (FUNCTION, "ncclkit.lab.resume.load_state_dict"),
        (MODULE, "ncclkit.causes.p2p_broken"),
        (MODULE, "ncclkit.lab.faults"),
        (CLASS, "ncclkit.lab.faults.Fault"),
        (FIELD, "ncclkit.core.model.Finding.say"),
        (PARAMETER, "ncclkit.live.probe.run.deadline"),
        (CONSTANT, "ncclkit.core.bandwidth.PCIE_LANE"),
        (FUNCTION, "ncclkit.core.text.split_lines"),
        (FUNCTION, "ncclkit.core.net.gateway"),
        (OPTION, "--simulate-hosts"),
        (PROSE, "way"),
    ],
)
def test_a_word_of_the_field_stays(kind, name):
    assert not retired(kind, name)


@pytest.mark.parametrize(
    "text",
    [
        "rank 0 fell silent first",
        "waited in vain",
        "until the time limit: no rank",
        "the name of vm leads to 127.0.0.1",
        "its own name leads to loopback",
        "there are 0 sends and 1 receives",
        "The run ended\nwell",
        "latency is no reason",
        "the group of which nothing is known",
        "`ncclkit inspect` tells its facts",
        "probe --ladder",
    ],
)
def test_a_retired_phrase_is_found(text):
    assert list(phrases(text))


@pytest.mark.parametrize(
    "text",
    [
        "CANCELLED DUE TO TIME LIMIT",
        "Slurm's time limit",
        "the time limit of the job",
        "this leads to a hang",
        "There is no port",
        "it is no longer alive",
        "4 ranks, of which 2 failed",
        "the experiment that tells them apart",
        "it still stands",
        "Variables of one host",
        "recommended",
    ],
)
def test_plain_english_stays(text):
    assert not list(phrases(text))
