"""What a rank may wait for, or be busy in, in the words of a sentence."""

from __future__ import annotations

GPU, PEERS, STORE, WORKER = "its GPU", "other ranks", "the store", "a data-loader worker"
FILE = "a file"
LOCK = "a lock"
GIL = "the GIL"
SOCKET = "a network peer"
PROCESS = "another process"
TIMER, STOPPED, HOLDS_GIL = "a timer", "a signal to go on", "native code that holds the GIL"
REQUESTS = "a request"
"""What a server waits for that has nothing to do; its workers wait for it all the while."""
DEBUGGER, DEBUG_CLIENT = "input in a debugger", "a debugger to attach"
TERMINAL, SCREEN = "input at a terminal", "a terminal to take its output"
PIPE, FIFO = "a pipe", "the other end of a FIFO"
SIGNAL, THREAD = "a signal", "another thread"
QUEUE, ROOM = "a queue that nothing fills", "room in a queue"
RESULT = "a result that nothing sets"
POOL = "a result of its pool"
ENDED = "its last thread"
"""Its program has ended, and a thread that is not a daemon keeps the process."""
PYTHON, NATIVE, UNKNOWN = "Python code", "native code", ""
FOR_PEERS = frozenset({GPU, PEERS, STORE})
BUSY = frozenset({PYTHON, NATIVE, HOLDS_GIL})
