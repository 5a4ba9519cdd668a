"""GPUs: what nvidia-smi's commands say, and NVML where nvidia-smi is silent."""

import pytest

from ncclkit.agent.facts import gpu
from ncclkit.agent.facts.machine import Answer, Hung, Machine, Missing, Unread

ONE = "<nvidia_smi_log><driver_version>580.1</driver_version><gpu id='00000000:01:00.0'/></nvidia_smi_log>"
TWO = ONE.replace("</nvidia_smi_log>", "<gpu id='00000000:02:00.0'/></nvidia_smi_log>")
PEERS = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tCNS\tX\t\n\nLegend:\n\n  OK   = Status Ok\n"


class RecordedOutput(Machine):
    """A machine on which each command says what is written here, or raises it."""

    def __init__(self, answers):
        super().__init__("/nonexistent")
        self.answers, self.asked = answers, []

    def run(self, argv, deadline, name=""):
        command = " ".join(argv) if argv[0] == "nvidia-smi" else name
        self.asked.append(command)
        answer = self.answers.get(command, Missing("%s is not installed" % command))
        if isinstance(answer, Unread):
            raise answer
        return Answer(0, answer)


def test_each_capability_is_asked_where_there_is_a_second_gpu():
    two, one = RecordedOutput({"nvidia-smi -q -x": TWO}), RecordedOutput({"nvidia-smi -q -x": ONE})
    for machine in (two, one):
        assert [row for row in gpu.gpu_facts(machine) if row["name"] == "gpu.count"]
    wanted = {"nvidia-smi topo -p2p " + letter for letter in "rwnap"}
    assert wanted <= set(two.asked) and wanted.isdisjoint(one.asked)


def test_peers():
    answers = {"nvidia-smi -q -x": TWO, "nvidia-smi topo -p2p r": PEERS, "nvidia-smi topo -p2p w": Hung("late")}
    rows = {row["name"]: row for row in gpu.gpu_facts(RecordedOutput(answers))}
    assert rows["gpu.p2p.read"]["value"] == {"GPU0": {"GPU1": "OK"}, "GPU1": {"GPU0": "CNS"}}
    assert (rows["gpu.p2p.write"]["value"], rows["gpu.p2p.write"]["why"]) == (None, "late")


def test_one_gpu_has_no_peer():
    rows = {row["name"]: row for row in gpu.gpu_facts(RecordedOutput({"nvidia-smi -q -x": ONE}))}
    assert rows["gpu.p2p.read"]["why"] == "there is no second GPU"


@pytest.mark.parametrize(
    "body, speeds",
    [
        ("\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n", [26.562, None]),
        ("\t Link 0: 25 GB/s\n", [25.0]),
        ("\t Link 0: <inactive>\n", [None]),
        ("", []),
    ],
)
def test_each_nvlink_has_its_state(body, speeds):
    links = gpu.nvlinks(Answer(0, "GPU 0: NVIDIA H200 (UUID: GPU-0)\n" + body))
    rows = {row["name"]: row["value"] for row in gpu.nvlink(0, links)}
    active = [speed for speed in speeds if speed]
    assert rows == {
        "gpu.0.nvlink.links": len(active),
        "gpu.0.nvlink.speed": min(active, default=None),
        "gpu.0.nvlink.speeds": speeds,
    }


WARNING = "WARNING: infoROM is corrupted at gpu 0000:5C:00.0"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ONE + "\n" + WARNING + "\n", WARNING),
        ("<?xml version='1.0' ?>\n" + ONE, ""),
        (WARNING + "\n" + ONE.replace("580.1", "580.1\x01"), WARNING),
        (ONE + ONE, ""),
    ],
    ids=["behind", "none", "before", "twice"],
)
def test_what_stands_around_the_xml_costs_no_fact(text, why):
    rows = {row["name"]: row for row in gpu.gpu_facts(RecordedOutput({"nvidia-smi -q -x": text}))}
    assert (rows["gpu.nvidia_smi"]["value"], rows["gpu.nvidia_smi"]["why"]) == ("answers", why)
    assert (rows["gpu.count"]["value"], rows["gpu.driver"]["value"]) == (1, "580.1")


GPU = "<gpu id='00000000:0%d:00.0'><product_name>NVIDIA H200</product_name></gpu>"
BOTH = "<nvidia_smi_log><driver_version>580.1</driver_version>" + GPU % 1 + GPU % 2 + "</nvidia_smi_log>"


@pytest.mark.parametrize(
    ("lost", "last"), [("H200</product_name></gpu></nvidia", 0), (GPU % 2, 0), ("/nvidia_smi_log", 1)]
)
def test_the_gpus_before_a_cut_are_told(lost, last, tmp_path):
    machine = RecordedOutput({"nvidia-smi -q -x": BOTH[: BOTH.index(lost)]})
    machine.root = str(tmp_path)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    rows = {row["name"]: row for row in gpu.gpu_facts(machine)}
    why = "nvidia-smi -q -x ended with status 0 and its XML breaks off behind GPU %d" % last
    assert (rows["gpu.nvidia_smi"]["value"], rows["gpu.nvidia_smi"]["why"]) == ("breaks off", why)
    assert (rows["gpu.driver"]["value"], rows["gpu.count"]["value"]) == ("580.1", 2)
    assert [row["value"] for name, row in rows.items() if name.endswith(".model")] == ["NVIDIA H200"] * (last + 1)


def test_a_cut_before_any_whole_gpu_is_a_failure():
    rows = {row["name"]: row for row in gpu.gpu_facts(RecordedOutput({"nvidia-smi -q -x": BOTH[: BOTH.index("</gpu>")]}))}
    assert rows["gpu.nvidia_smi"]["value"] == "failed" and "broken XML" in rows["gpu.nvidia_smi"]["why"]


def test_a_lost_gpu_has_no_name():
    lost = ONE.replace("'/>", "'><product_name>[GPU is lost]</product_name></gpu>")
    rows = {row["name"]: row for row in gpu.gpu_facts(RecordedOutput({"nvidia-smi -q -x": lost}))}
    assert rows["gpu.0.model"]["why"] == "nvidia-smi says [GPU is lost] for product_name"


def test_a_refusal_is_not_a_gpu_without_nvlinks():
    said = gpu.nvlinks(Answer(9, "Failed to get the state of the links\n"))
    assert "ended with status 9 and said: Failed" in list(gpu.nvlink(0, said))[0]["why"]
    assert list(gpu.nvlink(0, gpu.nvlinks(Answer(0, ""))))[0]["value"] == 0


def test_affinity_cells_may_be_empty():
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t\tN/A\nGPU1\tSYS\t X \t0-3,8-11\t1\n"
    assert gpu.affinity(text) == {"GPU0": "", "GPU1": "0-3,8-11"}
