"""A thread that runs a line of Python in another process.

It is begun by ptrace without a debugger, on Linux on x86_64.  Only the main thread is stopped, for
milliseconds: it makes one system call for a page of memory, and one call of ``pthread_create``.
All of its registers are then written back, and the kernel begins the call again in which it had
stood.  The new thread does the rest, so nobody waits where it gets no GIL.  All other threads run
on.

Registers of vectors and matrices are kept as one block whose size the kernel says: gdb before 14
knows no block as large as that of a processor with AMX, which is why its calls fail there.  The
block is written back unchanged before anything else, so where that is refused nothing has been
done.
"""

import ctypes
import os
import platform
import signal
import struct
import threading
import time

from ..run import processes
from .remote_symbols import Memory, NotFound, mappings, python_functions, thread_functions

OF_PYTHON = ("Py_IsInitialized", "PyGILState_Ensure", "PyRun_SimpleString", "PyGILState_Release")
OF_GLIBC = ("pthread_create", "pthread_self", "pthread_detach")

STOP_PATIENCE = 2.0
"""Seconds in which a thread stops that is asked to; one in a call of a driver or a dead file server
may not."""
PLACE_TRIES, PLACE_PAUSE = 50, 0.002
"""How often, and after how many seconds again, it is looked whether the main thread has left the C
library."""
CALL_PATIENCE = 1.0
"""Seconds after which it is looked where a call stands that has not come back."""
LOCK_TRIES = 3
"""How often in a row a call has to wait for a lock until it is taken for one that never comes
back."""
CALL_LIMIT = 8.0
"""Seconds after which a call is given up in any case; it takes 0.0001."""
POLL = 0.0002
"""Seconds between two looks at a thread that is to stop."""
LEASH = 2 * CALL_LIMIT
"""Seconds in which everything is over; then the kernel holds the main thread, and it stays traced
until it is back."""
STUCK_LOOKS, STUCK_PAUSE = 5, 0.05
"""How often, and after how many seconds again, it is looked whether a thread stands where no signal
reaches it."""

PTRACE_POKEDATA, PTRACE_CONT, PTRACE_SINGLESTEP = 5, 7, 9
PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH = 12, 13, 17
PTRACE_GETREGSET, PTRACE_SETREGSET, PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4204, 0x4205, 0x4206, 0x4207
PTRACE_GETSIGMASK, PTRACE_SETSIGMASK = 0x420A, 0x420B
PTRACE_EVENT_STOP = 128
WALL = 0x40000000
"""Option of waitpid: threads, too."""
NT_X86_XSTATE = 0x202
BLOCK = 1 << 17
"""Bytes of room for the registers of vectors and matrices; with AMX they take 11,008."""
MMAP, MUNMAP, FUTEX = 9, 11, 202
"""Numbers of system calls."""
MINUS_ONE = (1 << 64) - 1
INTERRUPTED = frozenset((1 << 64) - number for number in (4, 512, 513, 514, 516))
"""Results of system calls that a thread was waiting in (EINTR, ERESTART…)."""
READ_AND_RUN, PRIVATE_ANONYMOUS = 5, 0x22
"""What mmap is asked for."""
SYSTEM_CALL = b"\x0f\x05"
CALL_AND_STOP = b"\xff\xd0\xcc"
"""``call rax; int3``."""
RED_ZONE = 128
"""Bytes below its stack that a function may use."""
DIRECTION = 1 << 10
"""A flag that is off where a function begins."""
ERRORS = (1 << 64) - 4096
"""Results of system calls above it are errors."""
OWN = (signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that say what a thread itself did."""
OF_THREADS = (32, 33)
"""Signals by which glibc has all threads do something, and waits for it."""
BLOCKED = sum(1 << (number - 1) for number in range(1, 65) if number not in (*OWN, *OF_THREADS))
"""Signals that wait until the thread is back where it was."""


class ThreadRefused(Exception):
    """Nothing runs in the process, and it goes on as before; says why."""


class Registers(ctypes.Structure):
    """The general registers, as Linux gives them."""

    _fields_ = [
        (name, ctypes.c_ulong)
        for name in (
            "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax"
            " rip cs eflags rsp ss fs_base gs_base ds es fs gs"
        ).split()
    ]

    def with_values(self, **changed):
        """These registers with other values in some."""
        new = Registers.from_buffer_copy(self)
        for name, value in changed.items():
            setattr(new, name, value)
        return new


class _Buffer(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class _Ended(Exception):
    """The process has ended meanwhile."""


def begin(pid, line):
    """Begin a thread in a process that runs a line of Python; raises ThreadRefused.

    It does not wait for that thread.  Nobody else of this process may wait for the other process
    meanwhile, as a parent does that polls its child: that it has stopped is said to one of them
    alone.
    """
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise ThreadRefused("it knows only Linux on x86_64")
    refusals = []  # type: list[str]

    def trace():
        try:
            _begin(pid, line)
        except (ThreadRefused, NotFound) as error:
            refusals.append(str(error))
        except OSError as error:
            refusals.append("ptrace: %s" % (error.strerror or error))
        except _Ended:
            refusals.append("it has ended")

    # with the thread that traces the kernel lets go of whatever it traced
    tracer = threading.Thread(target=trace, name="tracer of %d" % pid, daemon=True)
    tracer.start()
    tracer.join(LEASH)
    if tracer.is_alive():
        raise ThreadRefused("the kernel holds its main thread")
    if refusals:
        raise ThreadRefused(refusals[0])


def _begin(pid, line):
    mapped = mappings(pid)
    with Memory(pid) as memory:
        functions = python_functions(pid, memory, mapped, OF_PYTHON)
        functions.update(thread_functions(memory, mapped, OF_GLIBC))
        libc = _library_of(mapped, functions["pthread_create"])
        code = memory.read(libc.start, libc.end - libc.start)
    place = code.find(SYSTEM_CALL)
    if place < 0:
        raise NotFound("its C library makes no system call")
    if _ignores_traps(pid):
        raise ThreadRefused("it ignores SIGTRAP")
    if _stuck_threads(pid):
        raise ThreadRefused(
            "a thread of it stands in the kernel where no signal reaches it (state D)"
        )
    with _Tracee(pid) as thread:
        thread.stop_outside(libc.start, libc.end)
        thread.keep()
        thread.run(libc.start + place, functions, line.encode() + b"\0")


def _library_of(mapped, function):
    """The stretch of code in which a function stands."""
    for one in mapped:
        if one.executable and one.start <= function < one.end:
            return one
    raise NotFound("its C library is not where it says")


def _ignores_traps(pid):
    """Whether SIGTRAP is ignored.

    The kernel would then reset what the process has said of it.
    """
    for row in processes.read_text("/proc/%d/status" % pid).splitlines():
        if row.startswith("SigIgn:"):
            return bool(int(row.split()[1], 16) >> (signal.SIGTRAP - 1) & 1)
    return False


def _stuck_threads(pid):
    """Threads that stand in the kernel whenever one looks.

    One may hold a lock for which a new page waits.
    """
    stuck = _uninterruptible(pid)
    for _ in range(STUCK_LOOKS):
        if not stuck:
            break
        time.sleep(STUCK_PAUSE)
        stuck &= _uninterruptible(pid)
    return stuck


def _uninterruptible(pid):
    folder = "/proc/%d/task" % pid
    stats = {
        task: processes.read_text("%s/%s/stat" % (folder, task)) for task in os.listdir(folder)
    }
    return {task for task, stat in stats.items() if stat.rpartition(")")[2].split()[:1] == ["D"]}


def entry_code(functions, text):
    """What the new thread runs: the Python at address `text`, with the GIL.

    After that the thread ends.
    """

    def call(name):
        # mov rax, address; call rax
        return b"\x48\xb8" + struct.pack("<Q", functions[name]) + b"\xff\xd0"

    python = call("PyGILState_Ensure") + b"\x89\xc3"  # mov ebx, eax
    python += b"\x48\xbf" + struct.pack("<Q", text) + call("PyRun_SimpleString")  # mov rdi, text
    python += b"\x89\xdf" + call("PyGILState_Release")  # mov edi, ebx
    # push rbx; test eax, eax; jz over Python
    code = b"\x53" + call("Py_IsInitialized") + b"\x85\xc0\x74"
    code += struct.pack("<B", len(python)) + python
    code += call("pthread_self") + b"\x48\x89\xc7" + call("pthread_detach")  # mov rdi, rax
    return code + b"\x31\xc0\x5b\xc3"  # xor eax, eax; pop rbx; ret


class _Tracee:
    """The main thread of a process, while it is traced.

    It is traced until it is let go as it was.
    """

    def __init__(self, pid):
        self.pid = pid
        self.signal = 0
        self.stopped = self.halted = self.kept = self.ended = False
        self._start, self._mask = Registers(), ctypes.c_uint64()
        self._room = ctypes.create_string_buffer(BLOCK)
        self._block = _Buffer(ctypes.addressof(self._room), BLOCK)
        self._library = ctypes.CDLL(None, use_errno=True)
        self._library.ptrace.argtypes = [
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._library.ptrace.restype = ctypes.c_long
        self._ptrace(PTRACE_SEIZE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Write back what was kept, and let go; a signal that came meanwhile is delivered then."""
        if self.ended:
            return
        if self.kept:
            # let go before that, it would die of the registers of a call
            while not self.stopped:
                self._ptrace(PTRACE_INTERRUPT)
                self._wait(CALL_PATIENCE)
            self._write_back()
        if self.stopped:
            self._ptrace(PTRACE_DETACH, 0, self.signal)

    def _ptrace(self, request, address=None, data=None):
        if self._library.ptrace(request, self.pid, address, data) == -1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def _resume(self, request):
        self._ptrace(request, 0, self.signal)
        self.signal = 0
        self.stopped = False

    def _wait(self, seconds):
        """Whether it stops within so many seconds.

        It stops at a signal, which is kept to be delivered, or because we asked.  Where somebody
        stops the whole process (`halted`), it stops with all other threads.
        """
        until = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, WALL | os.WNOHANG)
            if pid:
                break
            if time.monotonic() > until:
                return False
            time.sleep(POLL)
        if not os.WIFSTOPPED(status):
            self.ended = True
            raise _Ended
        self.stopped = True
        asked = status >> 16 == PTRACE_EVENT_STOP
        if asked:
            self.signal = 0
        else:
            self.signal = os.WSTOPSIG(status)
        self.halted = asked and os.WSTOPSIG(status) != signal.SIGTRAP
        return True

    def _stop(self):
        """Stop it; signals that come first are delivered."""
        until = time.monotonic() + STOP_PATIENCE
        self._ptrace(PTRACE_INTERRUPT)
        while self._wait(max(0.0, until - time.monotonic())):
            if self.halted:
                raise ThreadRefused("it was stopped by a signal")
            if not self.signal:
                return
            self._resume(PTRACE_CONT)
        raise ThreadRefused(
            "its main thread stands in a call of the kernel that nothing interrupts"
        )

    def stop_outside(self, start, end):
        """Stop it where it runs no code of these addresses.

        In the C library it may hold a lock that a call takes.  Where it waits in a system call it
        may stand there.
        """
        for _ in range(PLACE_TRIES):
            self._stop()
            now = self._registers()
            if not start <= now.rip < end or now.rax in INTERRUPTED:
                return
            self._resume(PTRACE_CONT)
            time.sleep(PLACE_PAUSE)
        raise ThreadRefused("its main thread does not leave the C library")

    def _registers(self):
        found = Registers()
        self._ptrace(PTRACE_GETREGS, 0, ctypes.addressof(found))
        return found

    def _set_registers(self, new):
        self._ptrace(PTRACE_SETREGS, 0, ctypes.addressof(new))

    def keep(self):
        """Keep its registers and which signals it blocks.

        Raises ThreadRefused where they could not be written back.
        """
        self._start = self._registers()
        if self._start.cs != 0x33:
            raise ThreadRefused("it runs code of 32 bits")
        try:
            self._ptrace(PTRACE_GETREGSET, NT_X86_XSTATE, ctypes.addressof(self._block))
            self._ptrace(PTRACE_SETREGSET, NT_X86_XSTATE, ctypes.addressof(self._block))
            self._ptrace(PTRACE_GETSIGMASK, ctypes.sizeof(self._mask), ctypes.addressof(self._mask))
        except OSError as error:
            raise ThreadRefused(
                "this kernel does not take its registers back (%s)" % error.strerror
            ) from error
        self.kept = True

    def _write_back(self):
        self._ptrace(PTRACE_SETREGSET, NT_X86_XSTATE, ctypes.addressof(self._block))
        self._ptrace(PTRACE_SETSIGMASK, ctypes.sizeof(self._mask), ctypes.addressof(self._mask))
        self._set_registers(self._start)

    def run(self, system_call, functions, text):
        """Call pthread_create for a thread that runs this text of Python.

        `system_call` is the address of such an instruction.  The page of the new thread stays when
        that has ended.
        """
        # the new thread takes them over, so it is never the one that a signal interrupts
        mask = ctypes.c_uint64(BLOCKED)
        self._ptrace(PTRACE_SETSIGMASK, ctypes.sizeof(mask), ctypes.addressof(mask))
        head = len(CALL_AND_STOP)
        size = head + len(entry_code(functions, 0)) + len(text)
        page = self._system_call(system_call, MMAP, 0, size, READ_AND_RUN, PRIVATE_ANONYMOUS)
        if page >= ERRORS:
            raise ThreadRefused("it gets no memory (%s)" % os.strerror((1 << 64) - page))
        entry = page + head
        code = entry_code(functions, entry + len(entry_code(functions, 0)))
        self._write(page, CALL_AND_STOP + code + text)
        stack = (self._start.rsp - RED_ZONE - 64) & ~63
        failed = (
            self._call(page, functions["pthread_create"], stack, (stack, 0, entry, 0)) & 0xFFFFFFFF
        )
        if failed:
            self._system_call(system_call, MUNMAP, page, size)
            raise ThreadRefused("it can begin no thread (%s)" % os.strerror(failed))

    def _write(self, address, data):
        data += b"\0" * (-len(data) % 8)
        for place, (word,) in enumerate(struct.iter_unpack("<Q", data)):
            self._ptrace(PTRACE_POKEDATA, address + 8 * place, word)

    def _system_call(self, instruction, number, first, second, third=0, fourth=0):
        """The result of a system call, which the thread makes in one step of its own."""
        words = {"rdi": first, "rsi": second, "rdx": third, "r10": fourth, "r8": MINUS_ONE, "r9": 0}
        begin = self._start.with_values(rip=instruction, rax=number, orig_rax=MINUS_ONE, **words)
        return self._result(begin, PTRACE_SINGLESTEP, instruction + len(SYSTEM_CALL))

    def _call(self, code, function, stack, words):
        """The result of a function, called by `CALL_AND_STOP` at this address."""
        values = dict(zip(("rdi", "rsi", "rdx", "rcx"), words))
        flags = self._start.eflags & ~DIRECTION
        begin = self._start.with_values(rip=code, rax=function, rsp=stack, eflags=flags, **values)
        return self._result(
            begin.with_values(orig_rax=MINUS_ONE), PTRACE_CONT, code + len(CALL_AND_STOP)
        )

    def _result(self, begin, request, end):
        """What is in rax once it has come from these registers to address `end`.

        A call that waits for a lock, which this very thread may have, is given up: its lock was
        free, or is its own.
        """
        self._set_registers(begin)
        self._resume(request)
        begun = time.monotonic()
        waits = 0
        while not self._wait(CALL_PATIENCE):
            self._ptrace(PTRACE_INTERRUPT)
            if not self._wait(STOP_PATIENCE):
                continue
            if self.signal or self.halted:
                break
            if self._registers().orig_rax == FUTEX:
                waits = waits + 1
            else:
                waits = 0
            if waits >= LOCK_TRIES or time.monotonic() - begun > CALL_LIMIT:
                raise ThreadRefused("its main thread holds a lock that a new thread takes")
            self._resume(request)
        now = self._registers()
        ended = self.signal == signal.SIGTRAP and now.rip == end
        if self.signal in OWN:
            self.signal = 0  # of this call, and nobody else's
        if not ended:
            raise ThreadRefused("it did not come back from a call")
        return now.rax
