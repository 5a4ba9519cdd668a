"""What this process has really loaded; an installer only knows what lies there."""

import ctypes
import sys

NCCL = "libnccl.so.2"


def versions():
    """``{name: version}`` of every imported package that says its own, and of NCCL where it is in memory already."""
    own = getattr(sys, "stdlib_module_names", ())  # since 3.10
    found = {
        name: str(vars(module)["__version__"])
        for name, module in list(sys.modules.items())
        if "." not in name and name not in own and "__version__" in vars(module)
    }
    return dict(sorted({**found, **_nccl()}.items()))


def _nccl():
    """Of the copy that wins, whatever torch was built with."""
    with open("/proc/self/maps") as maps:
        if "libnccl" not in maps.read():
            return {}
    number = ctypes.c_int()
    ctypes.CDLL(NCCL).ncclGetVersion(ctypes.byref(number))  # the one in memory, as the loader goes by this name
    return {"nccl": "%d.%d.%d" % (number.value // 10000, number.value // 100 % 100, number.value % 100)}
