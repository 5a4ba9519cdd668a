"""No text whatsoever in a source makes a reader raise."""

import json
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from ncclkit.agent.facts import cpu, gpu, host, limits, network, software, storage, variables
from ncclkit.agent.facts.machine import Answer, Machine, Unread

READERS = (
    cpu.cpu_facts,
    gpu.gpu_facts,
    host.host_facts,
    limits.limit_facts,
    network.network_facts,
    software.software_facts,
    variables.variable_facts,
    lambda machine: storage.storage_facts(machine, {"work": "."}),
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "",
            "\n",
            "0",
            "-1",
            "max",
            "max 100000",
            "unlimited",
            "N/A",
            "0::/a/b",
            "1:memory:/x",
            "4: ACTIVE",
            "a b c d",
            "Max open files  many many",
            "<nvidia_smi_log><gpu/></nvidia_smi_log>",
            "<nvidia_smi_log>",
            "\tGPU0\tGPU1\nGPU0\tX\n",
            "GPU 0:\n Link 0: x GB/s",
            "eth0 0 0",
            "Iface\nx\n",
            "25 1 259:2 / / rw - ext4 /dev/sda1 rw",
            "{}",
            "[]",
            "null",
            "1",
            '{"libraries": 1}',
            '{"libraries": [2]}',
            '{"gpus": [{"power": {"error": 1}, "throttle": null}]}',
            '{"gpus": [7]}',
            "NCCL_CONF_FILE=x\nexport NCCL_DEBUG=INFO\nNCCL_IB_HCA = x",
            "nvidia0 nvidia1",
        ]
    ),
)


class Garbage(Machine):
    """A machine on which every source says one of a few arbitrary texts."""

    def __init__(self, texts):
        self.texts, self.environ = (
            texts,
            {
                "LD_LIBRARY_PATH": texts[0],
                "NCCL_ALGO": texts[0],
                "NCCL_COMM_ID": texts[0],
                "NCCL_SOCKET_IFNAME": texts[-1],
                "HOME": "/h",
                "MASTER_PORT": texts[0],
                "NCCL_IB_HCA": texts[0],
                "NCCL_IB_GID_INDEX": "3",
                "NCCL_TOPO_FILE": "/" + texts[-1],
                "CUDA_VISIBLE_DEVICES": "0,1",
                "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": texts[0],
                "WORLD_SIZE": texts[0],
                "RANK": texts[-1],
            },
        )

    def say(self, *key):
        return self.texts[zlib.crc32(repr(key).encode()) % len(self.texts)]

    def read(self, path, limit=65536):
        return self.say(path)

    def names(self, path, pattern=""):
        return self.say("names", path).split()

    def link(self, path):
        return self.say("link", path)

    def call(self, name, function):
        if name == "getifaddrs":
            raise Unread("getifaddrs: " + self.say(name))
        return [self.say(name)]

    def run(self, argv, deadline, name=""):
        return Answer(0, self.say("run", *argv))


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_readers_survive(texts):
    for reader in READERS:
        for fact in reader(Garbage(texts)):
            json.dumps(fact)
            assert fact["value"] is not None or fact["why"]
