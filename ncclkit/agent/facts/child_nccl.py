"""A script: the version that an NCCL library itself reports.  Prints the number that ncclGetVersion gives."""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    """Ask the library whose path is the first argument."""
    number = ctypes.c_int()
    if ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(number)):
        sys.exit("ncclGetVersion failed")
    print(number.value)


main()
