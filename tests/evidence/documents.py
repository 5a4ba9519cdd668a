"""Outputs of other tools, format-true, and what must be read from them."""

from __future__ import annotations

LIMITS = {"limits.nofile.soft": 1024, "limits.memlock": 64 << 10, "limits.nproc": 96365, "limits.stack": 8 << 20}
BASH = """\
real-time non-blocking time  (microseconds, -R) unlimited
core file size              (blocks, -c) 0
data seg size               (kbytes, -d) unlimited
scheduling priority                 (-e) 0
file size                   (blocks, -f) unlimited
pending signals                     (-i) 96365
max locked memory           (kbytes, -l) 64
max memory size             (kbytes, -m) unlimited
open files                          (-n) 1024
pipe size                (512 bytes, -p) 8
POSIX message queues         (bytes, -q) 819200
real-time priority                  (-r) 0
stack size                  (kbytes, -s) 8192
cpu time                   (seconds, -t) unlimited
max user processes                  (-u) 96365
virtual memory              (kbytes, -v) unlimited
file locks                          (-x) unlimited
"""
DASH = """\
time(seconds)        unlimited
file(blocks)         unlimited
data(kbytes)         unlimited
stack(kbytes)        8192
coredump(blocks)     0
memory(kbytes)       unlimited
locked memory(kbytes) 64
process              96365
nofiles              1024
vmemory(kbytes)      unlimited
locks                unlimited
rtprio               0
"""
ZSH = """\
-t: cpu time (seconds)              unlimited
-f: file size (blocks)              unlimited
-d: data seg size (kbytes)          unlimited
-s: stack size (kbytes)             8192
-c: core file size (blocks)         0
-m: resident set size (kbytes)      unlimited
-u: processes                       96365
-n: file descriptors                1024
-l: locked-in-memory size (kbytes)  64
-v: address space (kbytes)          unlimited
-x: file locks                      unlimited
"""
PROC = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max file size             unlimited            unlimited            bytes
Max data size             unlimited            unlimited            bytes
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max resident set          unlimited            unlimited            bytes
Max processes             96365                96365                processes
Max open files            1024                 4096                 files
Max locked memory         65536                65536                bytes
Max address space         unlimited            unlimited            bytes
"""
DF = """\
Filesystem      Size  Used Avail Use% Mounted on
shm              64M  1.0M   63M   2% /dev/shm
"""
DF_K = """\
Filesystem     1K-blocks  Used Available Use% Mounted on
tmpfs              65536     0     65536   0% /dev/shm
"""
PORT = {
    "device": "mlx5_0",
    "port": 1,
    "state": "ACTIVE",
    "physical": "LinkUp",
    "rate": None,
    "link_layer": "InfiniBand",
    "numa": None,
    "gids": [],
    "counters": {},
}
DOWN = PORT | {"device": "mlx5_1", "state": "DOWN", "physical": "Disabled", "rate": 10.0, "link_layer": "Ethernet"}
TABLE = PORT | {
    "device": "mlx5_1",
    "state": "",
    "physical": "",
    "link_layer": "",
    "gids": [
        {"index": 0, "gid": "fe80:0000:0000:0000:a288:c2ff:fee3:bc1b", "type": "IB/RoCE v1", "interface": "eth1"},
        {"index": 3, "gid": "0000:0000:0000:0000:0000:ffff:0a00:0001", "type": "RoCE v2", "interface": "eth1"},
    ],
}
IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.39.1002
	Hardware version: 0
	Node GUID: 0xa088c20300e3bc1a
	System image GUID: 0xa088c20300e3bc1a
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 400
		Base lid: 151
		LMC: 0
		SM lid: 1
		Capability mask: 0xa751e848
		Port GUID: 0xa088c20300e3bc1a
		Link layer: InfiniBand
CA 'mlx5_1'
	CA type: MT4129
	Number of ports: 1
	Port 1:
		State: Down
		Physical state: Disabled
		Rate: 10
		Link layer: Ethernet
"""
IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:a088:c203:00e3:bc1a
	base lid:	 0x97
	sm lid:		 0x1
	state:		 4: ACTIVE
	phys state:	 5: LinkUp
	rate:		 400 Gb/sec (4X NDR)
	link_layer:	 InfiniBand

"""
DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.39.1002
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			phys_state:		LINK_UP (5)
			link_layer:		Ethernet

"""
GIDS = """\
DEV	PORT	INDEX	GID					IPv4  		VER	DEV
---	----	-----	---					------------  	---	---
mlx5_1	1	0	fe80:0000:0000:0000:a288:c2ff:fee3:bc1b			v1	eth1
mlx5_1	1	3	0000:0000:0000:0000:0000:ffff:0a00:0001	10.0.0.1  	v2	eth1
n_gids_found=2
"""
COLLECTED_SAYS = {
    "software.torch": "2.10.0+cu128",
    "software.torch.cuda": "12.8",
    "software.python": "3.11.7",
    "software.nccl.libraries": [{"path": "nvidia-nccl-cu12", "version": "2.27.5", "how": "wheel"}],
    "software.frameworks": {"numpy": "2.4.6", "triton": "3.6.0"},
    "host.os": "Debian GNU/Linux 12 (bookworm) (x86_64)",
    "host.kernel": "6.18.44",
    "host.glibc": "2.36",
    "cpu.total": 96,
    "cpu.model": "AMD EPYC 9654 96-Core Processor",
    "gpu.driver": "570.86.15",
    "gpu.count": 2,
    "gpu.1.model": "NVIDIA H100 80GB HBM3",
}
COLLECTED = """\
Collecting environment information...
PyTorch version: 2.10.0+cu128
Is debug build: False
CUDA used to build PyTorch: 12.8
ROCM used to build PyTorch: N/A

OS: Debian GNU/Linux 12 (bookworm) (x86_64)
GCC version: (Debian 12.2.0-14+deb12u1) 12.2.0
Libc version: glibc-2.36

Python version: 3.11.7 (main, May  9 2026, 07:35:25) [GCC 12.2.0] (64-bit runtime)
Python platform: Linux-6.18.44-x86_64-with-glibc2.36
Is CUDA available: True
GPU models and configuration:
GPU 0: NVIDIA H100 80GB HBM3
GPU 1: NVIDIA H100 80GB HBM3

Nvidia driver version: 570.86.15
cuDNN version: Could not collect

CPU:
Architecture:                            x86_64
CPU(s):                                  96
On-line CPU(s) list:                     0-95
Model name:                              AMD EPYC 9654 96-Core Processor

Versions of relevant libraries:
[pip3] numpy==2.4.6
[pip3] nvidia-nccl-cu12==2.27.5
[pip3] torch==2.10.0+cu128
[pip3] triton==3.6.0
[conda] Could not collect
"""
VLLM_SAYS = {
    "software.torch": "2.7.0+cu126",
    "software.torch.cuda": "12.6",
    "gpu.driver": "550.54.15",
    "env.NCCL_SOCKET_IFNAME": "eth0",
    "env.LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "software.frameworks": {"transformers": "4.52.4"},
    "env.HF_TOKEN": None,
}
VLLM = """\
==============================
       PyTorch Info
==============================
PyTorch version              : 2.7.0+cu126
Is debug build               : False
CUDA used to build PyTorch   : 12.6

==============================
      Python Environment
==============================
Python version               : 3.12.10 (main, Apr  9 2025, 04:03:51) [Clang 20.1.0 ] (64-bit runtime)

==============================
       CUDA / GPU Info
==============================
GPU models and configuration : GPU 0: NVIDIA L40S
Nvidia driver version        : 550.54.15

[pip3] transformers==4.52.4
==============================
     Environment Variables
==============================
NCCL_SOCKET_IFNAME=eth0
HF_TOKEN=hf_abcdefghijklmnopqrst
LD_LIBRARY_PATH=/usr/local/cuda/lib64
"""
