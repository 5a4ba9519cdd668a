"""A script: what a folder lies on and how fast a small file gets there.  Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time


def latencies(folder: str, repeats: int) -> list[float]:
    """Milliseconds of open + write 4 KiB + fsync + close, sorted."""
    times = []
    handle, name = tempfile.mkstemp(prefix=".ncclkit-", dir=folder)
    os.close(handle)
    try:
        for _ in range(repeats):
            start = time.perf_counter()
            with open(name, "wb") as file:
                file.write(b"ncclkit\n" * 512)
                file.flush()
                os.fsync(file.fileno())
            times.append((time.perf_counter() - start) * 1e3)
    finally:
        os.unlink(name)
    return sorted(times)


def main() -> None:
    """Print the resolved folder, its free space in bytes and the latency of a write in ms, or the error."""
    folder = os.path.realpath(sys.argv[1])
    said: dict[str, object] = {"path": folder}
    try:
        space = os.statvfs(folder)
        said["free"] = space.f_bavail * space.f_frsize
        times = latencies(folder, 5)
        said["latency"] = times[len(times) // 2]
    except OSError as error:
        said["error"] = "%s: %s" % (folder, error.strerror)
    print(json.dumps(said))


main()
