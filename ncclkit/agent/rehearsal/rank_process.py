"""The user's program as one rank, in a process that was forked for it.

A program is a script, a module, or a function of a module.  Whatever it does ends in an `Ending`.
"""

from __future__ import annotations

import dis
import importlib
import importlib.util
import os
import pathlib
import runpy
import signal
import sys
import threading
import traceback
from typing import Any, NamedTuple

from .connection import Connection, is_of_user, user_place
from .endings import Ending
from .virtual_time import SharedClock, map_clocks


class Program(NamedTuple):
    """What every rank runs, and how far."""

    words: list[str]
    """The script, or -m and a module, with its arguments."""
    function: dict[str, Any] | None
    """A function in place of a script: its `name`, `module`, `file`, `values` by name, the
    `attributes` of its instance, and the `path` on which modules are found."""
    ranks: int
    host_ranks: int
    """Ranks of one host."""
    steps: int
    """Steps of an optimizer after which a rank is stopped."""
    folder: str
    """Where ranks leave files for each other."""
    shown_gpus: str
    """Which GPUs the launcher shows a rank: a key of `SHOWN_GPUS`."""
    fake: bool = False
    """Whether tensors have shapes and no values."""
    gpu: str = ""
    """The name of the GPU that all ranks share; empty where `cuda` means the CPU."""


def run_program(connection: Connection, program: Program, clock: SharedClock) -> Ending:
    """Run the user's program in this process; returns how it ended."""
    from . import cuda_on_cpu, gpu_choice, process_group, shared_gpu

    connection.start_thread()
    map_clocks(clock, connection.sleepers)
    process_group.install_groups(
        connection,
        program.ranks,
        program.folder,
        shares_gpu=bool(program.gpu),
    )
    if program.gpu:
        shared_gpu.share_gpu(program.host_ranks)
    else:
        cuda_on_cpu.map_gpus(program.host_ranks)
    if program.function is not None:
        # whoever calls it on GPUs has chosen one for each rank
        gpu_choice.set_first(int(os.environ["LOCAL_RANK"]))
    _stop_after(connection, program.steps)
    _tell_hard_exit(connection)
    if program.fake:
        _begin_fake(connection)
    _tell_ended_threads(connection, program)
    _forget_ourselves()
    try:
        if program.function is None:
            _run_script(program.words)
        else:
            _call_function(program.function)
        _join_threads()
    except SystemExit as error:
        place, _ = error_place(error)
        _join_threads()
        return _exit_of("sys.exit", error.code, place)
    except BaseException as error:
        traceback.print_exc()
        place, function = error_place(error)
        return Ending(
            how="failed",
            say=_error_words(error),
            place=place,
            function=function,
            unrehearsable=process_group.is_beyond_us(error) or _may_be_fake(program, error),
        )
    return Ending("ended", "ended", "")


def _error_words(error: BaseException) -> str:
    return "%s: %s" % (type(error).__name__, str(error)[:LONGEST])


def _tell_ended_threads(connection: Connection, program: Program) -> None:
    """End the rank where a thread of it ends by what may be ours: its calls are then missing.

    A thread that ends by an error of the script ends so on GPUs, too, and the rank goes on.
    """
    from . import process_group

    usual = threading.excepthook

    def end_rank(ended: threading.ExceptHookArgs) -> None:
        usual(ended)
        error = ended.exc_value
        if error is None or isinstance(error, SystemExit):
            return
        if process_group.is_beyond_us(error) or _may_be_fake(program, error):
            place, function = error_place(error)
            say = "in a thread, %s" % _error_words(error)
            tell_end(connection, Ending("failed", say, place, function, unrehearsable=True))

    threading.excepthook = end_rank


def _begin_fake(connection: Connection) -> None:
    from . import fake_values

    def stop_rank(why: str, place: str) -> None:
        # no exception: the script might catch it, and go on
        traceback.print_stack()
        tell_end(connection, Ending("failed", why, place, unrehearsable=True))

    fake_values.begin_fake_run(stop_rank)


LONGEST = 300
"""Characters of an error's message that are kept."""


def _run_script(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    runpy.run_path(words[0], run_name="__main__")


def _call_function(function: dict[str, Any]) -> None:
    sys.path[:] = function["path"]
    target: Any = _module_of(function["module"], function["file"])
    *owners, name = function["name"].split(".")
    for owner in owners:
        target = getattr(target, owner)
    attributes = function["attributes"]
    if attributes is not None:
        # what set the instance up has run already, where the test was started
        target = target.__new__(target)
        vars(target).update(_given_values(attributes))
    values = _given_values(function["values"])
    getattr(target, name)(**values)


def _given_values(plain: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Values as the caller had them: a path is one again."""
    given = {}
    for name, record in plain.items():
        if "path" in record:
            given[name] = pathlib.Path(record["path"])
        else:
            given[name] = record["value"]
    return given


def _module_of(name: str, file: str) -> Any:
    """The module of a file: by its name where that leads there, as one of a package must be."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin == file:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _join_threads() -> None:
    """Wait for the threads that an interpreter waits for at its end: they may communicate."""
    # it also lets the threads of executors go, which nothing public does
    vars(threading)["_shutdown"]()


def _exit_of(function: str, code: Any, place: str) -> Ending:
    """The end of a rank that ended itself; a status other than 0 says that it failed."""
    if code in (None, 0):
        return Ending("exited", "called %s" % function, place)
    return Ending("failed", "called %s(%r)" % (function, code), place)


def error_place(error: BaseException) -> tuple[str, str]:
    """file:line and function of the innermost frame of the user's program in a traceback."""
    place = ""
    function = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_of_user(code.co_filename):
            place = "%s:%d" % (code.co_filename, line)
            function = code.co_name
    return place, function


def _may_be_fake(program: Program, error: BaseException) -> bool:
    """Whether an error may come of tensors without values: one that the script did not raise."""
    if not program.fake:
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return True
    code = last.tb_frame.f_code
    is_raised = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return not (is_raised and is_of_user(code.co_filename))


def _forget_ourselves() -> None:
    """The script may import a package of our name; it gets its own."""
    for name in list(sys.modules):
        if name == "ncclkit" or name.startswith("ncclkit."):
            del sys.modules[name]


def _tell_hard_exit(connection: Connection) -> None:
    """Let this rank say where it calls os._exit, which its own children do, too."""
    real = os._exit
    own = os.getpid()

    def leave(status: int) -> None:
        if os.getpid() != own:
            real(status)
        tell_end(connection, _exit_of("os._exit", status, user_place()))

    vars(os)["_exit"] = leave


def _stop_after(connection: Connection, steps: int) -> None:
    """Stop this rank for good after so many steps of one optimizer."""
    from torch.optim import optimizer

    taken: dict[int, int] = {}

    def count_step(own: Any, *_: Any) -> None:
        number = taken.get(id(own), 0) + 1
        taken[id(own)] = number
        if number >= steps:
            ending = Ending("stopped", "after %d steps" % steps, user_place())
            tell_end(connection, ending)

    optimizer.register_optimizer_step_post_hook(count_step)


def tell_end(connection: Connection, ending: Ending) -> None:
    """Say how this rank ended, and stay until the parent ends all.

    Its connections to others are so not torn down while they still work.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send_message({"end": ending._asdict()})
    while True:
        signal.pause()
