"""Which NCCL libraries and drivers the loader would find."""

from ncclkit.agent.facts import software
from ncclkit.agent.facts.machine import Machine


def machine(root, libs=(), links=(), conf="", environ=None):
    """A root folder with these files, links and a line in /etc/ld.so.conf.d."""
    for path in libs:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    for path, target in links:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    if conf:
        (root / "etc/ld.so.conf.d").mkdir(parents=True)
        (root / "etc/ld.so.conf.d/cuda.conf").write_text("# a comment\n%s\n" % conf)
    found = Machine(str(root))
    found.environ = environ or {}
    return found


def named(rows):
    return [(row["path"], row["version"], row["how"]) for row in rows]


def test_a_file_counts_once_however_many_links_lead_to_it(tmp_path):
    here = machine(
        tmp_path,
        ["usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3"],
        [("usr/lib/x86_64-linux-gnu/libnccl.so.2", "libnccl.so.2.28.3"), ("lib", "usr/lib")],
        conf="/lib/x86_64-linux-gnu",
    )
    assert named(software.search(here)) == [("/lib/x86_64-linux-gnu/libnccl.so.2", "2.28.3", "system")]


def test_folders_of_the_loader_configuration_are_searched(tmp_path):
    here = machine(tmp_path, ["opt/nccl/lib/libnccl.so.2.21.5"], conf="/opt/nccl/lib")
    assert named(software.search(here)) == [("/opt/nccl/lib/libnccl.so.2.21.5", "2.21.5", "system")]


def test_preference(tmp_path):
    libs = ["a/libnccl.so.2.1.0", "b/libnccl.so.2.2.0", "usr/lib64/libnccl.so.2.3.0", "t/libnccl.so.2.4.0"]
    environ = {"LD_PRELOAD": "/a/libnccl.so.2.1.0", "LD_LIBRARY_PATH": "/b"}
    rows = software.search(machine(tmp_path, libs, environ=environ), ["/t/libnccl.so.2.4.0"])
    assert [row["how"] for row in rows] == ["loaded by torch", "LD_PRELOAD", "LD_LIBRARY_PATH", "system"]


def test_links_that_go_round_end(tmp_path):
    here = machine(tmp_path, links=[("usr/lib/libnccl.so", "libnccl.so.2"), ("usr/lib/libnccl.so.2", "libnccl.so")])
    assert [row["version"] for row in software.search(here)] == [None] * 2


def test_version_of_the_driver(tmp_path):
    links = [("usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.550.163.01")]
    assert software.driver(machine(tmp_path, ["usr/lib64/libnvidia-ml.so.550.163.01"], links)) == "550.163.01"


def test_plugins_on_the_loader_path(tmp_path):
    libs = ["opt/ofi/libnccl-net-ofi.so", "opt/ofi/libother.so", "elsewhere/libnccl-net.so"]
    here = machine(tmp_path, libs, environ={"LD_LIBRARY_PATH": "/opt/ofi"})
    assert software.plugins(here) == ["/opt/ofi/libnccl-net-ofi.so"]


def test_the_nccl_that_an_image_names_is_noted_beside_the_one_that_wins(tmp_path):
    """Images of NVIDIA set NCCL_VERSION for their own library; NCCL does not read it."""
    wheel = ["v/nvidia_nccl_cu12-2.27.5.dist-info/RECORD", "usr/lib/libnccl.so.2.27.5"]
    for said, noted in (("2.21.5-1", ["2.21.5"]), ("2.27.5-1", []), ("", [])):
        here = machine(tmp_path, wheel, environ={"NCCL_VERSION": said})
        facts = {fact["name"]: fact for fact in software._nccl_facts(here, {})}
        assert facts["software.nccl"]["value"] == "2.27.5"
        assert [fact["value"] for name, fact in facts.items() if name == "software.nccl.image"] == noted
