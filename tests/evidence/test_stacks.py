"""Stacks in every form: one event per process, the main thread."""

from __future__ import annotations

import json

PYSPY = """Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    synchronize (torch/cuda/__init__.py:1040)
    step (train.py:33)
Thread 4720 (active): "Thread-1"
    run (worker.py:5)
"""
FAULT = """Process 4712: rank 3
Thread 0x00007f2a (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Thread 0x00007f3b (most recent call first):
  File "/home/me/train.py", line 33 in step
  File "/home/me/train.py", line 80 in <module>
"""
GDB = """#0  0x00007f in ?? ()
#1  0x00007f in nccl_p2p_ib_init (num_devs=0xc4 <ncclNIbDevs>, ncclIbDevs=<optimized out>,
    logFunction=<optimized out>) at p2p_plugin.c:315
#2  ncclNetInit (comm=comm@entry=0x75) at net.cc:351
"""


def functions(event):
    return [frame["func"] for frame in event.data.frames]


def test_py_spy_text(only):
    (event,) = only("stack", PYSPY, "stacks_rank2.txt")
    assert (event.rank, event.pid, event.data.tool, functions(event)) == (2, 4711, "py-spy", ["synchronize", "step"])


def test_faulthandler_prints_the_main_thread_last(only):
    (event,) = only("stack", FAULT, "stacks_rank3.txt")
    assert (event.rank, event.pid, event.data.tool) == (3, 4712, "faulthandler")
    assert event.data.frames[0] == {"file": "/home/me/train.py", "line": 33, "func": "step"}


def test_several_processes_in_one_file(only):
    events = only("stack", PYSPY + FAULT, "all.txt")
    assert [(event.pid, event.rank) for event in events] == [(4711, None), (4712, 3)]


def test_py_spy_json(only):
    threads = [
        {"pid": 4711, "thread_name": name, "frames": [{"name": name, "filename": "a.py", "line": 3}]}
        for name in ("MainThread", "Thread-1")
    ]
    (event,) = only("stack", json.dumps(threads), "stacks_rank1.json")
    assert (event.rank, event.pid, functions(event)) == (1, 4711, ["MainThread"])


def test_gdb_with_wrapped_arguments(only):
    (event,) = only("stack", "(gdb) bt\n" + GDB)
    assert functions(event) == ["??", "nccl_p2p_ib_init", "ncclNetInit"]
    assert event.data.frames[1]["line"] == 315


def test_a_stack_inside_a_log(only):
    (event,) = only("stack", "step 3\n" + PYSPY + "step 4\n")
    assert functions(event) == ["synchronize", "step"]


PYSTACK = """Traceback for thread 4711 (python) [Has the GIL] (most recent call last):
    (Python) File "/app/train.py", line 9, in <module>
    (Python) File "/app/train.py", line 7, in step
        dist.recv(t, src=1)
    (Python) File "/env/site-packages/torch/distributed/distributed_c10d.py", line 2799, in recv
      src: 1
    (C) File "???", line 0, in c10d::Work::wait(std::chrono::duration<long>) (/env/lib/libtorch_cpu.so)
    (C) File "./nptl/futex-internal.c", line 87, in __futex_abstimed_wait_common (inlined) (/lib/libc.so.6)

Traceback for thread 4712 (pt_gloo_runloop) [] (most recent call last):
    (C) File "???", line 0, in gloo::transport::tcp::UnboundBuffer::waitRecv(int*) (/env/lib/libtorch_cpu.so)
"""


def test_pystack_with_native_frames(only):
    (event,) = only("stack", PYSTACK, "stacks_rank2.txt")
    assert (event.rank, event.pid, event.data.tool, event.data.state) == (2, 4711, "pystack", "Has the GIL")
    assert [frame["func"] for frame in event.data.frames] == ["recv", "step", "<module>"]
    assert event.data.native[0] == "__futex_abstimed_wait_common (/lib/libc.so.6)" and event.data.peer == {
        "src": 1
    }
    assert event.data.threads[0]["name"] == "pt_gloo_runloop" and "waitRecv" in event.data.threads[0]["native"][0]
    assert event.text.startswith("Traceback for thread 4711") and "4712" not in event.text


ODD_FRAMES = """Traceback for thread 4713 (python) [] (most recent call last):
    (C) File "Modules/main.c", line 704, in Py_BytesMain (/usr/bin/python3.12)
    (Python) File "/app/train.py", line 9, in step
    (C) File "???", line -1, in  operator()  [clone .cold] (/opt/lib/libtorch_cuda.so (deleted))
    (C) File "???", line 0, in cuStreamSynchronize (/usr/lib/libcuda.so.580.1)
    (C) File "???", line ???
    (C) File "???", line 0, in __vdso_clock_gettime ([vdso])
"""


def test_a_frame_of_no_known_form_does_not_end_the_stack(only):
    (event,) = only("stack", ODD_FRAMES, "stacks_rank1.txt")
    assert len(event.data.native) == 4 and "cuStreamSynchronize (/usr/lib/libcuda.so.580.1)" in event.data.native
    assert functions(event) == ["step"]


PYSPY_NATIVE = """Process 4711: python train.py
Thread 4711 (active): "MainThread"
    cuStreamSynchronize (/usr/lib/libcuda.so.580.1)
    at::native::item (/opt/lib/libtorch_cpu.so:12)
    step (/app/train.py:33)
"""


def test_native_frames_of_py_spy_are_native(only):
    (event,) = only("stack", PYSPY_NATIVE, "stacks_rank1.txt")
    assert event.data.native[0] == "cuStreamSynchronize (/usr/lib/libcuda.so.580.1)" and functions(event) == ["step"]


LOST = """Process 4711: python train.py
Python v3.12.3 (/usr/bin/python3.12)

Thread 4711 (idle): "MainThread"
    0x7fc323698e51 (libc.so.6)
"""


def test_an_address_is_no_line_of_a_program(only):
    assert only("stack", LOST, "stacks_rank1.txt") == []
    named = LOST.replace("0x7fc323698e51 (libc.so.6)", "cuStreamSynchronize (libcuda.so.580)")
    (event,) = only("stack", named, "stacks_rank1.txt")
    assert event.data.native == ["cuStreamSynchronize (libcuda.so.580)"] and event.data.frames == []


def test_a_native_function_with_its_source_stands_above_python(only):
    text = LOST.replace("0x7fc323698e51 (libc.so.6)", "socketTryAccept (socket.cc:444)\n    recv (/app/train.py:12)")
    (event,) = only("stack", text, "stacks_rank1.txt")
    assert functions(event) == ["recv"] and event.data.native == ["socketTryAccept (socket.cc)"]
