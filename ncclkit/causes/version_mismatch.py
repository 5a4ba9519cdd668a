"""Ranks run different versions, or one process loads two NCCL libraries

What you see
    "Mismatched NCCL version detected", "Message truncated : received a bytes instead of b",
    "undefined symbol: ncclCommRegister" at import, a crash in the first collective, or a hang on
    the one node that was updated.  Other packages differ as well: "params[0] in this process …
    appears not to match sizes" where DDP starts.

Why it happens
    The ranks exchange C structs during start-up whose layout changes between releases, so all must
    load the same libnccl.  PyTorch's wheel brings its own copy, but LD_LIBRARY_PATH, LD_PRELOAD,
    conda, or a library imported before torch can load another one first; the dynamic loader then
    resolves torch's calls to the wrong file.

How to be sure
    `grep libnccl /proc/PID/maps` of a running rank on each node; the line "NCCL version ..." of
    every node.

What to do
    Remove the second libnccl from LD_LIBRARY_PATH, or import torch first.

Read more
    PyTorch release notes: bundled NCCL versions.  ld.so(8): search order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from ncclkit.analysis.hosts import can_simulate_again
from ncclkit.analysis.diagnostics import diagnostics, named_ranks
from ncclkit.analysis.outcome import outcome
from ncclkit.analysis.picks import (
    failed,
    first_finding,
    in_order,
    matching,
    messages,
    model_mismatch,
    name_hosts,
    name_ranks,
    pick,
    ranks_in,
    without,
    on,
)
from ncclkit.causes._experiments import experiment_of
from ncclkit.causes._preflight import HostFacts, Preflight, Risk
from ncclkit.core.case import Case
from ncclkit.core.event_list import known_hosts
from ncclkit.core.kinds import (
    C10dError,
    NcclAttn,
    NcclBootstrap,
    NcclVersion,
    PythonException,
    WorkerPhase,
)
from ncclkit.core.model import Advice, Event, Evidence, Experiment, Fact, Finding, Strength, found
from ncclkit.core.text import start

ID = "version_mismatch"
explains = (
    "c10d.error",
    "nccl.trace",
    "rank_exception",
    "c10d.timeout",
    "slow_rank",
    "world_size_mismatch",
    "store.lost",
    "driver_too_old",
    "ifname_not_found",
    "rank_divergence",
    "shape_mismatch",
)
UNFIT = re.compile(
    r"[^\s:]*lib(?:nccl|cud|cub|cuf|cus|cur|nv|torch|c10)[^\s:]*: cannot open shared object file"
    r"|\S+: version `\w+[\d.]*' not found|[Vv]ersion mismatch: The cluster was started with"
    r"|compiled with different CUDA (?:major )?versions|mismatches the version that was used to"
    r" compile PyTorch"
)
"""Messages about libraries or interpreters that do not fit together.

They are those of the dynamic loader, Ray and torchvision.
"""
BROUGHT = re.compile(r"rank (\d{1,6}) version (\d{5,6})(?!\d)")
"""Rank and version of each of the two ranks in NCCL's warning."""
WHEEL = "-packages/nvidia/nccl/"
"""Part of the path of the NCCL that torch's wheel depends on."""


def diagnose(case: Case) -> Finding:
    """Found where a mismatch is reported, or ranks print different versions.

    NCCL or the loader reports it.
    """
    went_well: list[Evidence] = [*case.of(NcclVersion)]
    went_well += [e for e in case.of(C10dError) if e.data.nccl_version]
    missing = "the line 'NCCL version …' of every node (NCCL_DEBUG=VERSION)"
    witness = first_finding(
        case,
        _reported_mismatch,
        _different_builds,
        _unfit_library,
        _built_without_nccl,
        _older_library,
        _logged_versions,
        _loaded_differently,
        _different_libraries,
        _garbled_message,
        _drivers_differ,
        CHECK.risk,
    )
    return witness or CHECK.otherwise(
        case, went_well, "The evidence shows one NCCL version.", missing
    )


def _reported_mismatch(case: Case) -> Finding | None:
    """NCCL's own check reports the versions of two ranks; the minority is named first."""
    lines = matching(messages(case), "Mismatched NCCL version", "NCCL version mismatch")
    brought = {}
    for event in lines:
        for rank, code in BROUGHT.findall(event.text):
            brought[int(rank)] = _version_of_code(int(code))
    if not lines:
        return None
    # the minority first: it is what somebody changed, or forgot
    having = sorted((count, version) for version, count in Counter(brought.values()).items())
    say = "NCCL reports that the ranks run different NCCL versions."
    odd = set(ranks_in(lines))
    if len(having) > 1:
        apart = [
            f"{v} on {name_ranks(rank for rank in sorted(brought) if brought[rank] == v)}"
            for _, v in having
        ]
        say = (
            f"The ranks loaded different releases of NCCL, which refuses that: {', '.join(apart)}."
        )
        (fewest, _), (most, usual) = having[0], having[-1]
        odd = set()
        for rank in brought:
            # equal camps are both named
            if fewest == most or brought[rank] != usual:
                odd.add(rank)
    own = [event for event in lines if event.rank in odd]
    why = pick(own[:2], lines)
    hosts = name_hosts(own or lines)
    return found(ID, "proven", say, why, ranks=tuple(sorted(odd)), hosts=hosts, advice=_advice())


BUILD = re.compile(r"rank (\d{1,7}) fingerprint (0x[0-9a-f]{1,16})")
"""Rank and build of each of the two ranks in NCCL's notice (2.32)."""


def _different_builds(case: Case) -> Finding | None:
    """The ranks loaded one release of NCCL in different builds, after which NCCL goes on."""
    lines = matching(case.of(NcclAttn), "Mismatched NCCL git versions")
    # it may be of no matter: a job that works is left alone
    works = outcome(case).success or (outcome(case).work and not failed(case))
    if not lines or works:
        return None
    builds: dict[int, str] = {}
    for event in lines:
        for rank, build in BUILD.findall(event.text):
            builds[int(rank)] = build
    # NCCL compares each rank with rank 0
    odd = []
    for rank in sorted(builds):
        if builds[rank] != builds.get(0):
            odd.append(rank)
    say = (
        f"{start(name_ranks(odd))} loaded another build of the same NCCL release than rank 0"
        f"{on(lines[0].host)}, which NCCL reports and does not refuse."
    )
    return found(ID, "proven", say, pick(lines), ranks=tuple(odd), advice=_advice())


def _version_of_code(code: int) -> str:
    """``2.28.9`` of 22809, as nccl.h writes it since 2.9."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _unfit_library(case: Case) -> Finding | None:
    """The dynamic loader could not resolve a library or symbol."""
    lines = matching(messages(case), "undefined symbol")
    unfit = []
    for event in messages(case):
        if event.kind != "nccl.warn" and UNFIT.search(event.text):
            unfit.append(event)
    lines += without(unfit, lines)
    if not lines:
        return None
    name = next((m[1] for e in lines if (m := re.search(r"undefined symbol: ?(\w+)", e.text))), "")
    # torch calls functions that only a newer libnccl has
    clash = name.startswith(("nccl", "pnccl"))
    loader = "A library is missing, or its version does not fit the program"
    say = f"{loader}: {_loader_message(lines[0])}."
    if name:
        say = (
            f"The process loaded a library that lacks {name}: two versions that do not fit"
            " together."
        )
    if clash:
        say = (
            f"The process loaded a libnccl that lacks {name}, older than the one torch was built"
            " for."
        )
    strength: Strength = "likely"
    if clash:
        strength = "proven"
    return found(
        ID,
        strength,
        say,
        pick(lines),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=(ONE_LIBRARY, *_advice()) if clash else _advice(),
    )


WITHOUT_NCCL = (
    "Distributed package doesn't have NCCL built in",
    "NCCL backend is not available",
    "not compiled with NCCL",
    "built without NCCL",
)
"""How torch and libraries on it say that they were built without NCCL."""
WITHOUT_ANY = re.compile(
    r"module 'torch\.distributed' has no attribute '(?:init_process_group|is_initialized|ReduceOp"
    r"|get_rank|get_world_size|barrier|all_reduce|new_group)'"
)
"""What Python says of a torch that was built without torch.distributed: all others have these."""


def _built_without_nccl(case: Case) -> Finding | None:
    """A program asked for NCCL, and the torch that runs it was built without it."""
    errors = case.of(PythonException)
    lines = matching(errors, *WITHOUT_NCCL)
    lines += [error for error in errors if WITHOUT_ANY.search(error.text)]
    if not lines:
        return None
    say = (
        f"The torch{on(lines[0].host)} was built without NCCL, as are those for CPUs, Windows and"
        " macOS."
    )
    return found(
        ID,
        "likely",
        say,
        pick(lines),
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=(BUILD_WITH_NCCL,),
    )


BUILD_WITH_NCCL = Advice(
    "Install a build of torch for CUDA on Linux (WSL on Windows) in the environment that runs the"
    " job, or ask for gloo where there is no NVIDIA GPU.",
    command=(
        "python -c 'import torch; print(torch.__version__, torch.version.cuda,"
        " torch.distributed.is_nccl_available())'"
    ),
    code='dist.init_process_group("nccl" if dist.is_nccl_available() else "gloo")',
    why="NCCL is part of torch's CUDA builds for Linux alone.",
    check="is_nccl_available() is True.",
    risk="gloo moves GPU memory through the host, and is slow.",
)


def _loader_message(event: Event) -> str:
    """The loader's message without the name of the exception."""
    said = UNFIT.search(event.text)
    if said:
        return " ".join(said[0].split())[:200]
    return ""


def _logged_versions(case: Case) -> Finding | None:
    """The ranks print different NCCL versions."""
    printed = {}
    for event in in_order(case.of(NcclVersion)):
        if event.data.version:
            printed[str(event.data.version)] = event
    quoted = {}
    for event in case.of(C10dError):
        if event.data.nccl_version:
            quoted[str(event.data.nccl_version)] = event
    seen = printed | quoted
    if len(seen) < 2:
        return None
    say = f"The ranks of this job load different NCCL versions: {' and '.join(sorted(seen))}."
    return found(
        ID, "likely", say, pick(seen.values()), hosts=name_hosts(seen.values()), advice=_advice()
    )


def _loaded_differently(case: Case) -> Finding | None:
    """Ranks of a failed job loaded different releases of a package.

    The minority, or the older one, is named first.
    """
    having: dict[str, dict[str, list[Event]]] = {}
    said = {}
    for e in case.of(WorkerPhase):
        if isinstance(e.data.loaded, Mapping):
            said[e.rank] = e
    for event in said.values():
        for name, version in event.data.loaded.items():
            having.setdefault(str(name), {}).setdefault(str(version), []).append(event)
    apart = {name: groups for name, groups in having.items() if len(groups) > 1}
    # releases may differ and still fit
    if not apart or not failed(case):
        return None
    name, groups = max(apart.items(), key=lambda item: -sum(map(len, item[1].values())))
    odd, *others = sorted(
        groups.items(), key=lambda group: (len(group[1]), _version_numbers(group[0]))
    )
    where = [
        f"{version} on {name_ranks(ranks_in(ranks))}{_at_hosts(ranks)}"
        for version, ranks in (odd, *others)
    ]
    say = f"The ranks loaded different releases of {name}: {', '.join(where)}"
    # DDP's own comparison shows that the releases do differ in what counts
    checked = model_mismatch(case)
    say += ", and DDP found that their models differ." if checked else "."
    other_hosts: set[str] = set()
    for _, ranks in others:
        other_hosts.update(name_hosts(ranks))
    hosts = set(name_hosts(odd[1])) - other_hosts
    return found(
        ID,
        "likely" if checked or name == "nccl" else "possible",
        say,
        pick(odd[1][:2], *(ranks[:2] for _, ranks in others), checked[:2]),
        ranks=ranks_in(odd[1]),
        hosts=tuple(sorted(hosts)),
        advice=(_one_release(name, others[-1][0]),),
        next=_one_host() if can_simulate_again(case) else None,
    )


def _at_hosts(ranks: list[Event]) -> str:
    hosts = name_hosts(ranks)
    if hosts:
        return f" ({hosts[0]}{_and_others(len(hosts) - 1)})"
    return ""


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def _one_release(name: str, version: str) -> Advice:
    """Advice to install one release.

    Logs are untrusted, so only what pip allows becomes a command.
    """
    plain = re.fullmatch(r"\w[\w.-]*", name) and re.fullmatch(r"\w[\w.+!-]*", version)
    return Advice(
        f"Install one release of {name} on all hosts, preferably by one environment or image for"
        " all of them.",
        command=f"python -m pip install '{name}=={version}'" if plain else "",
        why=(
            "Releases may build different models or call different collectives; the ranks then do"
            " not fit together."
        ),
        check=f"Every rank prints the same {name}.__version__.",
        risk="Checkpoints that were written with the other release may not load.",
    )


def _one_host() -> Experiment:
    """Run as many ranks on one host, which has one release only."""
    return experiment_of(
        "Do as many ranks build the same model on one host alone, where all of them load the same"
        " releases?",
        {"hosts": 1},
        {
            ID: ("works", "they do: the hosts differ, not the ranks"),
            "rank_divergence": (
                "same",
                "they fail in the same way: the program itself differs between ranks",
            ),
            "rank_exception": (
                "same",
                "they fail in the same way: the program is wrong on any host",
            ),
        },
    )


def _different_libraries(case: Case) -> Finding | None:
    """Hosts whose ranks would load different versions.

    The minority is named first.
    """
    # NCCL first: it is what refuses
    for name, what in (("software.nccl", "NCCL"), ("software.torch", "PyTorch")):
        having: dict[str, list[Fact]] = {}
        for fact in case.facts_of(name):
            if fact.value:
                having.setdefault(str(fact.value), []).append(fact)
        groups = sorted(having.items(), key=lambda group: len(group[1]))
        if len(groups) > 1:
            shares = []
            for version, facts in groups[:4]:
                shares.append(f"{version} on {facts[0].host}{_and_others(len(facts) - 1)}")
            say = (
                f"The hosts differ in their {what}: {', '.join(shares)}; their ranks would not fit"
                " together."
            )
            few = []
            for _, facts in groups[:-1]:
                few.extend(facts)
            hosts = tuple(sorted(known_hosts(few)))
            named = {event.host.partition(".")[0] for event in case.events}
            # hosts that left no line may not be of the job that failed
            elsewhere = any(host.partition(".")[0] not in named for host in hosts)
            strength: Strength = "likely"
            if failed(case) and elsewhere:
                strength = "possible"
            return found(
                ID, strength, say, pick(few, groups[-1][1][:1]), hosts=hosts, advice=_advice()
            )
    return None


def _and_others(count: int) -> str:
    if count:
        return f" and {count} other{'s' if count > 1 else ''}"
    return ""


def _host_risks(host: HostFacts) -> Iterator[Risk]:
    """Hosts on which another copy of NCCL is loaded before the one that torch ships."""
    rows = [row for row in host.value("software.nccl.libraries") or () if row.get("version")]
    wins = next((row for row in rows if row.get("how") in ("loaded by torch", "LD_PRELOAD")), None)
    wheel = None
    for row in rows:
        if WHEEL in str(row.get("path")):
            wheel = row["version"]
            break
    own = host.value("software.nccl.built") or wheel
    older = (
        wins is not None
        and own is not None
        and _minor_release(wins["version"]) < _minor_release(own)
    )
    # an older copy lacks functions; a newer one was only never tested
    if wins is None or not (older or (wheel and wheel != wins["version"])):
        return
    strength: Strength = "possible"
    if older:
        strength = "likely"
    say = (
        f"NCCL {wins['version']} of {wins['path']} ({wins['how']}) is loaded instead of torch's own"
        f" {own}; "
    )
    say += (
        "functions that torch needs would be missing"
        if older
        else "torch was not tested with that version"
    )
    yield Risk(say, [host.fact("software.nccl.libraries")], _advice()[0], strength)


def _minor_release(version: object) -> tuple[int, ...]:
    """``2.27`` of ``2.27.5`` as numbers.

    Functions are added with minor releases, not with patch releases.
    """
    return tuple(int(part) for part in re.findall(r"\d+", str(version))[:2])


UNSET = "attribute value -2147483648"
"""What newer headers write for "not set", and a library from before them refuses."""


def _older_library(case: Case) -> Finding | None:
    """The library that was loaded is older than the headers that its caller was built with."""
    lines = matching(messages(case), UNSET)
    if not lines:
        return None
    say = (
        "The NCCL that was loaded is older than the one that the program was built with: it refuses"
        " -2147483648, by which newer headers say that nothing was set."
    )
    why = pick(lines, case.of(NcclVersion))
    return found(
        ID,
        "likely",
        say,
        why,
        ranks=ranks_in(lines),
        hosts=name_hosts(lines),
        advice=(ONE_LIBRARY, *_advice()),
    )


def _garbled_message(case: Case) -> Finding | None:
    """A message could not be parsed although its reader has an interface."""
    lines = matching(
        messages(case), "is neither AF_INET", "Message truncated : received", "wrong size: received"
    )
    # the address line has another reason as well: no interface (ifname_not_found)
    structs = [e for e in lines if "neither" not in e.text]
    if not structs and (not lines or not case.of(NcclBootstrap)):
        return None
    say = (
        "A rank received an address or message that it could not read: another rank may run another"
        " NCCL version."
    )
    # the structs of the start change from release to release
    strength: Strength = "possible"
    if structs:
        strength = "likely"
    why = pick(lines, case.of(NcclVersion))
    return found(
        ID, strength, say, why, ranks=ranks_in(lines), hosts=name_hosts(lines), advice=_advice()
    )


def _drivers_differ(case: Case) -> Finding | None:
    """NCCL's diagnostics find drivers of unlike versions, of a job that failed."""
    lines = diagnostics(case, "driver")
    if not lines or outcome(case).success:
        return None
    ranks, who = named_ranks(case, lines[0])
    say = f"NCCL's diagnostics find another version of the driver at {who} than elsewhere."
    return found(
        ID,
        "possible",
        say,
        pick(lines),
        ranks=ranks,
        advice=_advice(),
    )


def _advice() -> tuple[Advice, ...]:
    return (
        Advice(
            "Run all ranks from one image or environment, and let torch find its own NCCL.",
            command=(
                "unset LD_PRELOAD; echo $LD_LIBRARY_PATH; python -c 'import torch;"
                " print(torch.cuda.nccl.version())'"
            ),
            why="The ranks exchange binary structs whose layout depends on the version.",
            check="All nodes print the same version.",
            risk="Another program of the job may need the library you hide.",
        ),
        Advice(
            "See which file a rank really loaded.",
            command="grep -h libnccl /proc/[0-9]*/maps 2>/dev/null | awk '{print $6}' | sort -u",
            why="An import before torch can load a second copy first.",
            check="One path, inside torch's environment.",
            risk="None, it only reads.",
        ),
    )


ONE_LIBRARY = Advice(
    "Let the process find one NCCL only, the release that torch was built with: remove the other"
    " package (pip, conda, system) and its folder from LD_LIBRARY_PATH and LD_PRELOAD, and import"
    " torch before what brings its own (cupy, TensorFlow).",
    command=(
        "python -m pip list | grep -iE '^(torch|nvidia-nccl|cupy)'; ldconfig -p | grep libnccl;"
        " echo $LD_PRELOAD $LD_LIBRARY_PATH"
    ),
    why="The loader takes the copy that it finds first, and that one is older than torch needs.",
    check="`import torch` succeeds, and `grep libnccl /proc/self/maps` in it shows one path.",
    risk="Another program of the job may need the library you remove.",
)
"""Where one process found another NCCL than it was built with."""


def experiment(case: Case) -> Experiment:
    """Run the same job with the libraries that torch ships."""
    return experiment_of(
        "Does the job start when torch finds its own libraries, without LD_PRELOAD and"
        " LD_LIBRARY_PATH?",
        {"unset": ["LD_PRELOAD", "LD_LIBRARY_PATH"]},
        {
            ID: ("works", "it starts"),
            "net_plugin": ("works", "it starts: the plugin is not found any more"),
            "driver_too_old": ("same", "it fails in the same way"),
            "rank_exception": ("same", "it fails in the same way"),
        },
    )


CHECK = Preflight(
    ID,
    reads=("software.nccl.libraries", "software.nccl"),
    risks=_host_risks,
    fine="Ranks load the NCCL that torch ships.",
    also=("software.nccl.built",),
    next=experiment,
)
REMEDIES = (ONE_LIBRARY, BUILD_WITH_NCCL, *_advice(), _one_release("<package>", "<version>"))
