"""What other tools print becomes facts, alone in a file or between the lines of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclkit.evidence import tools
from ncclkit.evidence.sources.streams import ENDS, Ends
from tests.evidence import documents as docs

MACHINES = Path(__file__).parents[1] / "machines"
XML = (MACHINES / "h200-x8-slurm" / "commands" / "nvidia_smi_q_x.txt").read_text()
TOPOLOGY = (MACHINES / "h200-x8-slurm" / "commands" / "nvidia_smi_topo_m.txt").read_text()
FREE = (
    "               total        used        free      shared  buff/cache   available\n"
    "Mem:           65536       61000        2000           0        2536        3072\n"
)
GOOD = "RuntimeError: CUDA error: boom\n"
ALL = {
    "nvidia-smi -q -x": (XML, {"gpu.count": 8, "gpu.driver": "580.159.04", "gpu.7.model": "NVIDIA H200"}),
    "nvidia-smi topo -m": (TOPOLOGY, {"gpu.topology.nics": {"NIC0": "mlx5_0", "NIC1": "mlx5_1"}}),
    "collect_env": (docs.COLLECTED, docs.COLLECTED_SAYS),
    "collect_env of vLLM": (docs.VLLM, docs.VLLM_SAYS),
    "ulimit -a": (docs.BASH, docs.LIMITS),
    "ulimit -a of dash": (docs.DASH, docs.LIMITS),
    "ulimit -a of zsh": (docs.ZSH, docs.LIMITS),
    "/proc/self/limits": (docs.PROC, docs.LIMITS | {"limits.nofile.hard": 4096}),
    "df /dev/shm": (docs.DF, {"limits.shm.size": 64 << 20, "limits.shm.free": 63 << 20}),
    "df -k": (docs.DF_K, {"limits.shm.size": 65536 << 10, "limits.shm.free": 65536 << 10}),
    "free": (FREE, {"memory.total": 64 << 20, "memory.available": 3 << 20}),
    "ibstat": (docs.IBSTAT, {"net.rdma": [docs.PORT | {"rate": 400.0}, docs.DOWN]}),
    "ibstatus": (docs.IBSTATUS, {"net.rdma": [docs.PORT | {"rate": 400.0}]}),
    "ibv_devinfo": (docs.DEVINFO, {"net.rdma": [docs.PORT | {"physical": "LinkUp", "link_layer": "Ethernet"}]}),
    "show_gids": (docs.GIDS, {"net.rdma": [docs.TABLE]}),
}
WRAPPERS = {
    "plain": "{}",
    "torchrun": "[default0]:{}",
    "srun -l": "0: {}",
    "mpirun": "[1,0]<stdout>:{}",
    "crlf": "{}\r",
}


def values(reading):
    return {fact.name: fact.value for fact in reading.facts}


def named(said, names):
    return {name: said.get(name) for name in names}


@pytest.mark.parametrize("tool", ALL)
def test_an_output_becomes_facts(read_text, tool):
    text, expected = ALL[tool]
    reading = read_text(text, "saved")
    assert named(values(reading), expected) == expected
    assert reading.inputs[0]["kind"] == tool.partition(" of ")[0].replace("df -k", "df /dev/shm")
    assert all(fact.source.startswith(reading.inputs[0]["path"] + ":") for fact in reading.facts)
    assert not reading.problems


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_outputs_are_found_in_a_log_behind_any_launcher(read_text, wrapper):
    glued = "".join(f"=== {tool} ===\n{text}\n" for tool, (text, _) in ALL.items() if "of" not in tool) + GOOD
    lines = [WRAPPERS[wrapper].format(line) for line in glued.split("\n")]
    reading = read_text("\n".join(lines))
    said = [(fact.name, fact.value) for fact in reading.facts]
    for tool, (_, expected) in ALL.items():
        if "of" not in tool and "net.rdma" not in expected:
            assert all(pair in said for pair in expected.items()), tool
    fact = next(fact for fact in reading.facts if fact.name == "gpu.driver")
    line = int(fact.source.rpartition(":")[2].split()[0])
    assert "<nvidia_smi_log>" in lines[line - 1] and reading.inputs[0]["kind"] == "log"
    assert "cuda.error" in [event.kind for event in reading.events]


def test_what_several_tools_say_of_a_port_stands_together(read_text):
    said = values(read_text(docs.IBSTAT + docs.GIDS))["net.rdma"]
    assert [(row["device"], row["state"], len(row["gids"])) for row in said] == [
        ("mlx5_0", "ACTIVE", 0),
        ("mlx5_1", "DOWN", 2),
    ]


def test_facts_know_rank_and_host_where_the_file_does(read_text):
    line = "node-1:4711:4720 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    facts = read_text(docs.BASH + line, "rank3.log").facts
    assert facts and {(fact.rank, fact.host) for fact in facts} == {(3, "node-1")}
    other = line.replace("node-1", "node-2")
    assert {fact.host for fact in read_text(docs.BASH + line + other).facts} == {""}


@pytest.mark.parametrize("near", [True, False])
def test_the_beginning_and_the_end_of_a_large_log_are_searched(read_text, near):
    filler = "step without any news\n" * ((3 * ENDS) // 22)
    reading = read_text(docs.BASH + filler if near else filler + docs.BASH)
    assert named(values(reading), docs.LIMITS) == docs.LIMITS
    at = 7 + (0 if near else filler.count("\n"))
    assert {fact.source.rpartition(":")[2] for fact in reading.facts} == {f"{at} (ulimit -a)"}


def test_utf16_is_read_too(read_text):
    assert named(values(read_text(docs.BASH.encode("utf-16"))), docs.LIMITS) == docs.LIMITS


def test_ends_keep_whole_what_is_small_and_both_ends_of_the_rest():
    ends = Ends()
    for chunk in (small := [b"a" * 1000, b"b" * ENDS, b"c" * 10]):
        ends.add(chunk)
    assert ends.head_and_tail() == (b"".join(small), b"")
    for number in range(40):
        ends.add(bytes([number]) * (ENDS // 8))
    first, last = ends.head_and_tail()
    assert first.startswith(b"a" * 1000 + b"b") and last.endswith(bytes([39]) * 9) and ENDS <= len(last) < 2 * ENDS


def test_a_cut_xml_tells_of_the_gpus_before_the_cut(read_text):
    reading = read_text(XML[: XML.index('<gpu id="00000000:3') + 900])
    said = values(reading)
    assert said["gpu.0.model"] == "NVIDIA H200" and "gpu.count" not in said
    assert "breaks off within the output of nvidia-smi" in reading.problems[0]


def test_broken_xml_is_one_sentence(read_text):
    reading = read_text(XML.replace("</driver_version>", "</driver>"))
    assert not reading.facts and "is not valid XML" in reading.problems[0] and "\n" not in reading.problems[0]


def test_entities_of_hostile_xml_are_never_expanded(read_text, tmp_path):
    (tmp_path / "secret").write_text("secret of the host")
    bomb = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))
    doctype = f'<!DOCTYPE x [<!ENTITY a0 "ha">{bomb}<!ENTITY s SYSTEM "file://{tmp_path}/secret">]>'
    for entity in ("&a9;", "&s;"):
        text = XML.replace('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', doctype)
        reading = read_text(text.replace("580.159.04", entity))
        assert doctype in text and not reading.facts and "is not valid XML" in reading.problems[0]


@pytest.mark.parametrize("tool", ALL)
@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.85])
def test_cut_outputs_are_no_error_and_say_nothing_wrong(read_text, tool, share):
    text, expected = ALL[tool]
    said = values(read_text("started\n" + text[: int(len(text) * share)]))
    for name, value in expected.items():
        if name in said and not isinstance(value, (list, dict, str)):
            assert said[name] == value


def test_lines_that_only_look_like_outputs_give_nothing(read_text):
    text = "CPU Affinity of GPU0 is unknown\nPyTorch version: \nlocked memory(\nDEV PORT INDEX GID\nCA 'x'\n"
    text += "<nvidia_smi_log\n"
    text += "hca_id:\n# size busbw\n99999999999999999999999999G 1 1 9% /dev/shm\nmax locked memory\nMax stack size \n"
    reading = read_text(text)
    assert reading.facts == [] and reading.measurements == []


def test_nothing_is_decoded_where_no_anchor_stands(monkeypatch):
    monkeypatch.setattr(tools, "parse_prefix", None)
    ends = Ends()
    for _ in range(4):
        ends.add(b"step 1\n" * (ENDS // 7))
        assert tools.at_ends(ends, "job.log", None, 1000) == []
    ends.add(docs.BASH.encode())
    with pytest.raises(TypeError):
        tools.at_ends(ends, "job.log", None, 1000)


@pytest.mark.timeout(60)  # the square of it would take hours
@pytest.mark.parametrize(
    "line", ["<nvidia_smi_log>", "PyTorch version: 2", "CA 'x'", "hca_id: x", docs.BASH, docs.IBSTAT]
)
def test_endless_outputs_are_read_at_once(line):
    text = (line + "\n").encode() * 20_000
    assert len(tools.search(text[:ENDS], "job.log")) <= tools.MOST
