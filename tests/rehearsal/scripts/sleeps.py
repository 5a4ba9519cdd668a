"""Ranks that sleep, poll and work, each in another way; the argument says which."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

POLLS = 200
"""More than these, a second each, and the clock has run ahead of who works."""
FILE = f"{sys.argv[1]}.ready"
CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    globals()[sys.argv[1]](dist.get_rank())
    dist.all_reduce(torch.ones(1))


def long(rank):
    if rank == 0:
        time.sleep(2400)


def shorter(rank):
    if rank == 0:
        time.sleep(1200)


def leaves_late(rank):
    if rank == 1:
        time.sleep(2400)
        sys.exit()


def in_order(rank):
    before = read_clocks()
    seconds = 100 * (rank + 1)
    time.sleep(seconds)
    for name, began in before.items():
        unit = 1e9 if name.endswith("_ns") else 1
        passed = (getattr(time, name)() - began) / unit
        assert seconds <= passed < seconds + 90, (name, passed)
    with open("order", "a") as order:
        order.write(f"{rank}\n")


def read_clocks():
    return {name: getattr(time, name)() for name in CLOCKS}


def with_heartbeat(rank):
    def beat():
        while True:
            time.sleep(10)

    threading.Thread(target=beat, daemon=True).start()
    long(rank)


def with_executor(rank):
    executor = ThreadPoolExecutor(1)
    executor.submit(int).result()
    long(rank)


def polls_sleeper(rank):
    if rank == 0:
        assert 59 <= poll() <= 62
    elif rank == 1:
        time.sleep(60)
        make_file()


def polls_worker(rank):
    if rank == 0:
        poll()
    elif rank == 1:
        compute()
        make_file()


def polls_thread(rank):
    if rank == 0:
        threading.Thread(target=lambda: (compute(), make_file())).start()
        poll()


def polls_timed_wait(rank):
    if rank == 0:
        waits = threading.Event()
        threading.Thread(target=lambda: (waits.wait(2), make_file())).start()
        poll()


def polls_child(rank):
    if rank == 0:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(2)"])
        for _ in range(POLLS):
            if child.poll() is not None:
                return
            time.sleep(1)
        raise SystemError("the clock ran ahead of a child")


def never(rank):
    if rank == 0:
        while not os.path.exists(FILE):
            time.sleep(3600)


def all_never(rank):
    never(0)


def compute():
    until = time.process_time() + 2
    while time.process_time() < until:
        pass


def make_file():
    open(FILE, "w").close()


def poll():
    polls = 0
    while not os.path.exists(FILE):
        time.sleep(1)
        polls += 1
        assert polls < POLLS, "the clock ran ahead of who works"
    return polls


main()
