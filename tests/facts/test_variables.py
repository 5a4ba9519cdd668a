"""What is wrong with a variable."""

import pytest

from ncclkit.agent.facts import nccl_variables, network, settings, variables
from ncclkit.agent.facts.machine import Machine, Unread


@pytest.mark.parametrize(
    "name, value, kind, words",
    [
        ("NCCL_BUFSIZE", "1", "misspelt", "NCCL_BUFFSIZE"),
        ("NCCL_IB_TIMOUT", "22", "misspelt", "NCCL_IB_TIMEOUT"),
        ("NCCL_SOCKET_IFNAMES", "eth0", "misspelt", "NCCL_SOCKET_IFNAME"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "1", "misspelt", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_ZZZ", "1", "unknown", "ignored silently"),
        ("NCCL_BLOCKING_WAIT", "1", "renamed", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_P2P_DISABLE", "true", "value", "write 0 or 1"),
        ("NCCL_P2P_DISABLE", "7", "value", "write 0 or 1"),
        ("NCCL_IB_TIMEOUT", "long", "value", "whole number"),
        ("NCCL_ALGO", "Rng", "value", "RING"),
        ("NCCL_ALGO", "allreduce:tree,rng", "value", "RING"),
        ("NCCL_PROTO", "LL256", "value", "LL128"),
        ("NCCL_DEBUG", "DEBUG", "value", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NETT", "value", "NET"),
        ("TORCH_DISTRIBUTED_DEBUG", "1", "value", "DETAIL"),
        ("MASTER_PORT", "99999", "value", "1024"),
        ("NCCL_IB_TIMEOUT", "32", "value", "five bits"),
        ("NCCL_IB_RETRY_CNT", "15", "value", "three bits"),
        ("NCCL_CROSS_NIC", "3", "value", "2 if needed"),
        ("NCCL_MAX_NCHANNELS", "128", "value", "between the two"),
        ("NCCL_SOCKET_IFNAME", '"eth0"', "value", "without them"),
        ("TORCH_NCCL_BLOCKING_WAIT", "on", "value", "0 or 1"),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "many", "value", "whole number"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "4", "value", "tear down"),
        ("NCCL_LL_THRESHOLD", "0", "renamed", "NCCL_PROTO"),
    ],
)
def test_wrong(name, value, kind, words):
    [row] = settings.check_value(name, value)
    assert (row["kind"], row["name"], row["value"]) == (kind, name, value) and words in row["hint"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("NCCL_ALGO", "allreduce:tree,ring;broadcast:^ring"),
        ("NCCL_ALGO", "^NVLS"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG_SUBSYS", "^INIT,ENV"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_P2P_LEVEL", "3"),
        ("NCCL_CUMEM_ENABLE", "-2"),
        ("NCCL_IB_PKEY", "0x7fff"),
        ("NCCL_P2P_DISABLE", "01"),
        ("MASTER_PORT", "0x7000"),
        ("NCCL_GIN_TYPE", "2"),
        ("NCCL_TESTS_DEVICE", "0"),
        ("MASTER_PORT", "29500"),
        ("NCCL_VERSION", "2.28.3-1"),
        ("TORCH_CUDA_ARCH_LIST", "9.0a"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail"),
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("UCX_WHATEVER", "x"),
        ("OMP_NUM_THREADS", "4,2"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_CTA_POLICY", "EFFICIENCY|ZERO"),
        ("NCCL_IB_QUERY_PORT_SPEED", "1"),  # of NCCL 2.30.7, in no user guide
        ("TORCH_NCCL_BLOCKING_WAIT", "Yes"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "600s"),  # torch reads 600
    ],
)
def test_right(name, value):
    assert list(settings.check_value(name, value)) == []


def test_tables_do_not_overlap():
    tables = [
        settings.FLAGS,
        settings.NUMBERS,
        settings.TEXTS,
        settings.TORCH_FLAGS,
        settings.TORCH_NUMBERS,
        set(settings.CHOICES),
    ]
    assert sum(map(len, tables)) == len(set().union(*tables))


def test_rules_speak_of_known_names():
    named = {rule[1] for rule in variables.RULES} | {rule[3] for rule in variables.RULES} | set(settings.RANGES)
    named |= set().union(*variables.BOUNDS) | variables.FILES | variables.WRITTEN | set(variables.HARMFUL)
    elsewhere = {"LD_PRELOAD", "CUDA_LAUNCH_BLOCKING"}
    assert named - settings.KNOWN == elsewhere and all(settings.SCOPE.match(name) for name in named)


def port(device, state="ACTIVE", layer="Ethernet", gids=()):
    rows = [{"index": index, "type": kind} for index, kind in gids]
    return {"device": device, "port": 1, "state": state, "link_layer": layer, "gids": rows}


V1, V2 = "IB/RoCE v1", "RoCE v2"


@pytest.mark.parametrize(
    "values, ports, kinds",
    [
        ({"NCCL_IB_HCA": "mlx5"}, [port("mlx5_0")], []),
        ({"NCCL_IB_HCA": "=mlx5_0:1"}, [port("mlx5_0")], []),
        ({"NCCL_IB_HCA": "^mlx5_7"}, [port("mlx5_0")], []),
        ({"NCCL_IB_HCA": "mlx5_7"}, [port("mlx5_0")], ["device"]),
        ({"NCCL_IB_HCA": "=mlx5"}, [port("mlx5_0")], ["device"]),
        ({"NCCL_IB_HCA": "^mlx5"}, [port("mlx5_0")], ["device"]),
        ({"NCCL_IB_HCA": "mlx5_0:2"}, [port("mlx5_0")], ["device"]),
        ({"NCCL_IB_HCA": "mlx5_0"}, [port("mlx5_0", "DOWN"), port("mlx5_1")], ["device"]),
        ({"NCCL_IB_HCA": "mlx5"}, [port("mlx5_0", "DOWN"), port("mlx5_1")], []),
        ({"NCCL_NET": "IB"}, [], ["device"]),
        ({"NCCL_NET": "IB"}, [port("mlx5_0")], []),
        ({"NCCL_IB_GID_INDEX": "3"}, [port("mlx5_0", gids=[(0, V1), (3, V2)])], []),
        ({"NCCL_IB_GID_INDEX": "0"}, [port("mlx5_0", gids=[(0, V1), (3, V2)])], ["harmful"]),
        ({"NCCL_IB_GID_INDEX": "5"}, [port("mlx5_0", gids=[(0, V1), (3, V2)])], ["device"]),
        ({"NCCL_IB_GID_INDEX": "5"}, [port("mlx5_0", layer="InfiniBand", gids=[(0, V1)])], []),
        ({"NCCL_IB_GID_INDEX": "-1"}, [port("mlx5_0")], []),
    ],
)
def test_rdma(values, ports, kinds):
    assert [row["kind"] for row in variables.rdma_devices(values, ports)] == kinds


@pytest.mark.parametrize(
    "values, rdma, found",
    [
        ({"NCCL_IB_DISABLE": "1"}, False, []),
        ({"NCCL_IB_DISABLE": "1"}, True, [("harmful", "NCCL_IB_DISABLE")]),
        ({"NCCL_P2P_DISABLE": "1"}, False, [("harmful", "NCCL_P2P_DISABLE")]),
        ({"NCCL_P2P_DISABLE": "0"}, False, []),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, True, [("harmful", "NCCL_NET_GDR_LEVEL")]),
        ({"NCCL_NET_GDR_LEVEL": "SYS"}, True, []),
        ({"NCCL_PROTO": "simple"}, False, [("harmful", "NCCL_PROTO")]),
        ({"NCCL_PROTO": "^LL128"}, False, []),
        ({"TORCH_NCCL_BLOCKING_WAIT": "true"}, False, [("harmful", "TORCH_NCCL_BLOCKING_WAIT")]),
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, False, [("harmful", "TORCH_DISTRIBUTED_DEBUG")]),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, False, [("conflict", "NCCL_NET")]),
        ({"NCCL_IB_HCA": "mlx5", "NCCL_NET": "socket"}, False, [("overruled", "NCCL_IB_HCA")]),
        ({"NCCL_DEBUG_SUBSYS": "NET"}, False, [("overruled", "NCCL_DEBUG_SUBSYS")]),
        ({"NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG": "INFO"}, False, []),
        (
            {"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "8"},
            False,
            [("overruled", "NCCL_MIN_NCHANNELS")],
        ),
        ({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "16"}, False, []),
        ({"NCCL_SOCKET_NTHREADS": "8", "NCCL_NSOCKS_PERTHREAD": "8"}, False, []),
        (
            {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
            False,
            [("overruled", "NCCL_NSOCKS_PERTHREAD")],
        ),
        ({"RANK": "8", "WORLD_SIZE": "8"}, False, [("value", "RANK")]),
        ({"RANK": "7", "WORLD_SIZE": "8"}, False, []),
        ({"RANK": "7"}, False, []),
        ({"MASTER_ADDR": "localhost", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False, []),
        (
            {"MASTER_ADDR": "localhost", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            False,
            [("conflict", "MASTER_ADDR")],
        ),
        ({"MASTER_ADDR": "127.0.1.1", "SLURM_NNODES": "2"}, False, [("conflict", "MASTER_ADDR")]),
        (
            {"NCCL_SOCKET_IFNAME": "lo", "SLURM_NNODES": "2"},
            False,
            [("conflict", "NCCL_SOCKET_IFNAME")],
        ),
        ({"NCCL_SOCKET_IFNAME": "^lo", "SLURM_NNODES": "2"}, False, []),
    ],
)
def test_conflicts(values, rdma, found):
    assert [(row["kind"], row["name"]) for row in variables.check_together(values, rdma)] == found


@pytest.mark.parametrize(
    "name, value, problems",
    [
        ("NCCL_TOPO_FILE", "{here}/topo.xml", 0),
        ("NCCL_TOPO_FILE", "{here}/gone.xml", 1),
        ("NCCL_NET_PLUGIN", "ofi", 0),
        ("NCCL_NET_PLUGIN", "{here}/libgone.so", 1),
        ("LD_PRELOAD", "{here}/topo.xml:{here}/gone.so", 1),
        ("NCCL_DEBUG_FILE", "{here}/nccl.%h.%p.log", 0),
        ("NCCL_DEBUG_FILE", "{here}/gone/nccl.log", 1),
        ("NCCL_DEBUG_FILE", "/%h/nccl.log", 0),
        ("TORCH_FR_DUMP_TEMP_FILE", "{here}/gone/rank_", 1),
    ],
)
def test_paths(tmp_path, name, value, problems):
    (tmp_path / "topo.xml").write_text("")
    rows = list(variables.named_files({name: value.format(here=tmp_path)}, Machine()))
    assert [row["kind"] for row in rows] == ["path"] * problems


@pytest.mark.parametrize(
    "value, absent",
    [("0,1", False), ("1,2", True), ("GPU-12ab", False), ("", False), ("2", True), ("0, 1", False)],
)
def test_visible_devices(tmp_path, value, absent):
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).write_text("")
    assert bool(list(variables.visible_gpus({"CUDA_VISIBLE_DEVICES": value}, Machine(str(tmp_path))))) == absent


def test_a_file_is_read_as_nccl_itself_read_it(tmp_path):
    """NCCL 2.30.7's environment, asked with getenv after ncclGetUniqueId, with this very file."""
    file = tmp_path / "nccl.conf"
    file.write_text(
        "NCCL_DEBUG = INFO\nexport NCCL_IB_TC=3\n NCCL_IB_SL=1\n#NCCL_IB_TIMEOUT=1\n"
        'NCCL_SOCKET_IFNAME="eth0"\nNCCL_IB_PKEY=5 # note\nTORCH_FOO=7\nNCCL_IB_QPS_PER_CONNECTION=4\r\n'
    )
    machine = Machine()
    machine.environ = {"NCCL_CONF_FILE": str(file)}
    found, rows = settings.in_force(machine)
    assert {name: value for name, (value, source) in found.items() if source == str(file)} == {
        "NCCL_SOCKET_IFNAME": '"eth0"',
        "NCCL_IB_PKEY": "5 # note",
        "TORCH_FOO": "7",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
    }
    assert [(row["kind"], row["name"]) for row in rows] == [
        ("misspelt", "NCCL_DEBUG"),
        ("misspelt", "NCCL_IB_TC"),
        ("misspelt", "NCCL_IB_SL"),
    ]


def test_a_relative_file_counts_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "my.conf").write_text("NCCL_DEBUG=INFO\n")
    monkeypatch.chdir(tmp_path)
    machine = Machine()
    machine.environ = {"NCCL_CONF_FILE": "my.conf"}
    assert settings.values(machine)["NCCL_DEBUG"] == "INFO"


def test_the_interface_in_a_file_is_the_one_nccl_takes(tmp_path):
    (tmp_path / "nccl.conf").write_text("NCCL_SOCKET_IFNAME=lo\n")
    machine = Machine()
    machine.environ = {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")}
    [chosen] = [fact for fact in network.network_facts(machine) if fact["name"] == "net.nccl.interface"]
    assert chosen["value"] == "lo"


def test_a_problem_says_in_which_file_it_stands(tmp_path):
    (tmp_path / "nccl.conf").write_text("NCCL_IB_TIMEOUT=99\n")
    machine = Machine()
    machine.environ = {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")}
    [row] = [
        row for fact in variables.variable_facts(machine) if fact["name"] == "env.problems" for row in fact["value"]
    ]
    assert row["hint"].endswith("(set in %s)" % (tmp_path / "nccl.conf"))


class Blind(Machine):
    """A machine whose interfaces cannot be read."""

    def call(self, name, function):
        raise Unread("getifaddrs: Operation not permitted")


def test_what_could_not_be_checked_is_said():
    machine = Blind("/nowhere")
    machine.environ = {"NCCL_SOCKET_IFNAME": "eth9"}
    facts = {fact["name"]: fact["value"] for fact in variables.variable_facts(machine)}
    assert facts["env.problems"] == []
    assert [row["kind"] for row in facts["env.notes"]] == ["unchecked"]


@pytest.mark.parametrize(
    "name, value, nccl, kind, words",
    [
        (
            "NCCL_RAS_TIMEOUT_FACTOR",
            "0.5",
            None,
            None,
            "",
        ),  # legal since 2.31: not wrong in all releases
        ("NCCL_RAS_TIMEOUT_FACTOR", "0.5", (2, 31, 2), None, ""),
        ("NCCL_RAS_TIMEOUT_FACTOR", "0.5", (2, 27, 5), "value", "2.31.2"),
        ("NCCL_RAS_TIMEOUT_FACTOR", "2", (2, 27, 5), None, ""),
        ("NCCL_RAS_TIMEOUT_FACTOR", "-1", None, "value", "above 0"),
        ("NCCL_RAS_TIMEOUT_FACTOR", "long", (2, 31, 2), "value", "above 0"),
        ("NCCL_DEBUG", "ATTN", None, None, ""),
        ("NCCL_DEBUG", "ATTN", (2, 32, 3), None, ""),
        ("NCCL_DEBUG", "ATTN", (2, 31, 2), "value", "WARN"),
        ("NCCL_SET_THREAD_NAME", "true", (2, 31, 2), None, ""),
        ("NCCL_SET_THREAD_NAME", "true", (2, 18, 3), "value", "0 or 1"),
        ("NCCL_IB_PKEY_VALUE", "0x8001", (2, 31, 2), None, ""),
        ("NCCL_IB_PKEY_VALUE", "0x18001", (2, 31, 2), "value", "16 bits"),
        ("NCCL_RUN_DIAGNOSTICS", "1", (2, 31, 2), None, ""),
        ("NCCL_RUN_DIAGNOSTICS", "1", (2, 27, 5), "unread", "2.31.2"),
        (
            "NCCL_RUN_DIAGNOSTICS",
            "1",
            (2, 31, 0),
            None,
            "",
        ),  # between two measured releases: not known
        ("NCCL_CREATE_THREAD_CONTEXT", "1", (2, 30, 7), "unread", "gone"),
        ("NCCL_CREATE_THREAD_CONTEXT", "1", (2, 28, 9), None, ""),
        ("NCCL_RUN_DIAGNOSTICS", "1", (2, 40, 1), None, ""),  # newer than what was measured
    ],
)
def test_a_setting_is_judged_by_the_nccl_that_reads_it(name, value, nccl, kind, words):
    rows = list(settings.check_value(name, value, nccl))
    assert [row["kind"] for row in rows] == ([kind] if kind else [])
    assert all(words in row["hint"] for row in rows)


@pytest.mark.parametrize(
    ("nccl", "words"),
    [((2, 31, 2), "takes 0"), ((2, 32, 3), "takes its default"), (None, "no effect")],
)
def test_what_a_release_makes_of_text_for_a_number_is_said(nccl, words):
    (row,) = settings.check_value("NCCL_P2P_DISABLE", "yes", nccl)
    assert words in row["problem"]


@pytest.mark.parametrize("value", ["true", "True", "f", "1"])
def test_words_that_a_switch_takes_are_no_problem(value):
    assert list(settings.check_value("NCCL_PARAM_DUMP_ALL", value, (2, 31, 2))) == []
    (row,) = settings.check_value("NCCL_PARAM_DUMP_ALL", "perhaps", (2, 31, 2))
    assert row["kind"] == "value"


def test_a_default_that_changed_between_two_releases_that_were_read_is_not_known_there():
    assert nccl_variables.default_in("NCCL_IB_AR_THRESHOLD", (2, 28, 9)) == 8192
    assert nccl_variables.default_in("NCCL_IB_AR_THRESHOLD", (2, 29, 7)) is None
    assert nccl_variables.default_in("NCCL_IB_AR_THRESHOLD", (2, 30, 7)) == -2
    # it is new since 2.29.7, which was not read
    assert nccl_variables.default_in("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", (2, 29, 7)) is None
    assert nccl_variables.default_in("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", (2, 30, 7)) == -2


def test_of_a_variable_that_became_text_or_a_fraction_no_number_is_known_any_more():
    assert nccl_variables.default_in("NCCL_RAS_TIMEOUT_FACTOR", (2, 30, 7)) == 1
    assert nccl_variables.default_in("NCCL_RAS_TIMEOUT_FACTOR", (2, 31, 2)) is None


def test_defaults_are_those_of_a_release():
    assert nccl_variables.default_in("NCCL_RUN_DIAGNOSTICS", (2, 31, 2)) == 0
    assert nccl_variables.default_in("NCCL_MNNVL_RAIL_PER_HOST", (2, 32, 3)) == -1
    assert nccl_variables.default_in("NCCL_IB_TIMEOUT", (2, 18, 3)) == 18
    assert nccl_variables.default_in("NCCL_IB_TIMEOUT", (2, 27, 5)) == 20
    assert nccl_variables.default_in("NCCL_RUN_DIAGNOSTICS", (2, 18, 3)) is None
    assert nccl_variables.default_in("NCCL_CGA_CLUSTER_SIZE", (2, 31, 2)) is None  # as the program configures it


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.27.5+cuda12.9", (2, 27, 5)), ("2.21.5-1", (2, 21, 5)), ("2.14", (2, 14)), ("none", None)],
)
def test_versions_are_read(text, version):
    assert nccl_variables.version_of(text) == version


def test_each_variable_of_the_table_is_known_by_name():
    assert not [name for name in nccl_variables.ROWS if not settings.is_known(name)]
