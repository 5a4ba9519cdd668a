"""A script: what the training interpreter's torch says.  Prints one JSON object; makes no CUDA context."""

from __future__ import annotations

import glob
import json
import os
import sys
import time

sys.path[:] = [entry for entry in sys.path if entry]  # a torch.py in the working folder is not torch

MOST = 20
"""Lock files that are told."""


def mapped(name: str) -> list[str]:
    """The paths of the libraries of that name that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        lines = [line.split(None, 5) for line in maps]
    paths = [line[5].strip() for line in lines if len(line) == 6]
    return sorted({path for path in paths if name in path.rsplit("/", 1)[-1]})


def main() -> None:
    """Import torch and print what it says about itself."""
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:
        sys.exit("import torch failed: %s: %s" % (type(error).__name__, error))
    said = {"version": torch.__version__, "cuda": torch.version.cuda, "libraries": mapped("libnccl.so")}
    names = ("gloo", "nccl", "mpi", "ucc", "xccl")
    available = dist.is_available()
    said["backends"] = [name for name in names if available and getattr(dist, "is_%s_available" % name, bool)()]
    said["gpus"] = torch.cuda.device_count()  # through NVML, without a CUDA context
    said["cudnn"] = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    if "nccl" in said["backends"]:
        said["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    said["locks"] = locks(os.environ.get("TORCH_EXTENSIONS_DIR"))
    print(json.dumps(said))


def locks(root):
    """The lock files of torch's C++ extensions, each with its age in seconds: of `root`, else of the user's cache.

    As `torch.utils.cpp_extension` lays them out: <root>/<name>/lock, <cache>/torch_extensions/<python and CUDA>/<name>.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    places = (root, "*") if root else (cache, "torch_extensions", "*", "*")
    found = []
    for path in sorted(glob.glob(os.path.join(*places, "lock")))[:MOST]:
        try:
            found.append({"path": path, "age": round(max(0.0, time.time() - os.stat(path).st_mtime))})
        except OSError:
            continue  # released while we looked
    return found


main()
