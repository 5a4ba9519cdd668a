"""Who reads logs and dumps side by side.

They are processes of this host, or workers of Dask, here or in batch jobs of Slurm.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from ncclkit.core.model import NcclkitError
from ncclkit.core.text import plural
from ncclkit.live import scheduler, worker_lease

FORM = re.compile(r"dask(?::(?P<count>[1-9]\d{0,3}))?|(?P<address>(?:tcp|tls|ucx)://\S+)")
"""``dask``, ``dask:8``, or the address of a scheduler of Dask that runs."""
SUBMITS = 30.0
"""Seconds for sbatch, which tries again where the queue is full."""
START = 120.0
"""Seconds in which the first worker must be there.

A batch job may wait longer than that.
"""
NOBODY = "127.0.0.1:0"
"""Where Dask's page listens, which no one asked for.

It is on loopback, and not at the port of somebody else's.
"""


@contextmanager
def started(what: str, on_note: Callable[[str], object]) -> Iterator[Executor | None]:
    """The executor that ``--readers`` names, as long as the block runs.

    It is None, with a sentence, where it cannot be had.  ``dask`` starts workers on this host, or
    on a login node as batch jobs of Slurm, as many as the work asks for, up to the number behind
    it.  Whoever reaches a port of Dask executes code, so these talk over TLS with keys of their
    own; of a scheduler that runs already its owner decides.
    """
    asked = FORM.fullmatch(what)
    if asked is None:
        raise NcclkitError(
            f"The workers {what!r} are not understood; write dask, dask:8, or tcp://HOST:PORT."
        )
    try:
        import distributed
    except ModuleNotFoundError:
        on_note(
            "Dask is not installed (pip install 'ncclkit[dask]'), so processes of this host read"
            " instead."
        )
        yield None
        return
    client = cluster = caretaker = None
    try:
        try:
            most = int(asked["count"] or len(os.sched_getaffinity(0)))
            if asked["address"]:
                cluster = None
            else:
                cluster = _cluster(most)
            caretaker = None
            if _key_files(cluster):
                caretaker = _caretaker(cluster)
            client = distributed.Client(asked["address"] or cluster, timeout=START)
            client.wait_for_workers(1, timeout=START)
            on_note(
                f"{plural(len(client.scheduler_info()['workers']), 'worker')} of Dask so far, at"
                f" most {most}."
            )
            executor = client.get_executor()
        except (OSError, TimeoutError, RuntimeError, ImportError) as error:
            # whatever Dask lacks, the logs are read
            on_note(
                f"Dask has no worker ({type(error).__name__}: {error}), so processes of this host"
                " read instead."
            )
            executor = None
        yield executor
    finally:
        # dask-jobqueue leaves its files with keys to the garbage collector
        for held in (client, cluster, *_key_files(cluster)):
            if held is not None:
                held.close()
        if caretaker is not None:
            _dismiss(caretaker)


CARETAKER = """
import contextlib, os, subprocess, sys
sys.stdin.read()
for path in sys.argv[2:]:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
subprocess.run(["scancel", "--name", sys.argv[1]], timeout=30, **quiet)
"""
"""What removes the keys and ends the batch jobs once its input closes.

It ends also any job that was submitted last.  Its input closes when the program that reads ends,
whatever ended it.
"""
CARE = 40.0
"""Seconds that this may take."""


def _caretaker(cluster: Any) -> subprocess.Popen[bytes]:
    """A process that cleans up after a cluster of batch jobs when this one is gone."""
    paths = [file.name for file in _key_files(cluster)]
    words = [sys.executable, "-I", "-S", "-c", CARETAKER, cluster.job_name, *paths]
    # a group of its own, which a Ctrl-C in the terminal does not end
    return subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)


def _dismiss(caretaker: subprocess.Popen[bytes]) -> None:
    """Have a caretaker clean up now, and wait for it."""
    try:
        # this closes its input, for which it waits
        caretaker.communicate(timeout=CARE)
    except subprocess.TimeoutExpired:
        caretaker.kill()
        caretaker.wait()


def _key_files(cluster: Any) -> list[Any]:
    """The files in which the keys of batch jobs lie.

    It is None where workers are processes of this host.
    """
    files = (getattr(cluster, f"_job_{name}", None) for name in ("ca_file", "key", "cert"))
    return [file for file in files if file is not None]


def _cluster(most: int) -> Any:
    """Workers that grow and shrink with the work.

    They are batch jobs on a login node, else processes of this host.
    """
    import dask
    from distributed import Security

    keys = Security.temporary()
    # a worker starts a process with limits for what strangers wrote, which no daemon may
    dask.config.set({"distributed.worker.daemon": False})
    if scheduler.is_login_node():
        from dask_jobqueue import SLURMCluster

        more = dask.config.get("jobqueue.slurm.job-extra-directives", None) or []
        if not dask.config.get("jobqueue.slurm.log-directory", None):
            # else each worker leaves a file in the user's folder
            more = [*more, "--output=/dev/null"]
        name = f"ncclkit-dask-{secrets.token_hex(6)}"  # by which these jobs are ended, and no other
        given = dask.config.get("jobqueue.slurm.worker-extra-args", None) or []
        cluster = SLURMCluster(
            job_cls=_bounded_job(),
            job_name=name,
            worker_extra_args=[*given, "--preload", worker_lease.__name__],
            cores=1,
            processes=1,
            memory="2GB",
            nanny=False,
            walltime="01:00:00",
            interface=_interface(),
            job_extra_directives=more,
            security=keys,
            scheduler_options={"dashboard_address": NOBODY},
            shared_temp_directory="~",  # where jobs find the keys, which go with the cluster
            protocol="tls://",
        )
    else:
        from distributed import LocalCluster

        cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=NOBODY,
            security=keys,
            protocol="tls://",
        )
    cluster.adapt(minimum=1, maximum=most)
    return cluster


def _bounded_job() -> Any:
    """The class of a worker's job whose sbatch and scancel are bounded.

    They end, and say no more than they may.
    """
    from dask_jobqueue.slurm import SLURMJob

    class BoundedJob(SLURMJob):  # type: ignore[misc]
        @staticmethod
        async def _call(cmd: list[str], **_: Any) -> str:
            try:
                return await asyncio.to_thread(scheduler.ask_slurm, *cmd, deadline=SUBMITS)
            except NcclkitError as error:
                raise RuntimeError(str(error)) from error  # as dask-jobqueue itself does

    return BoundedJob


def _interface() -> str | None:
    """The interface that the nodes reach us by, where the user names one."""
    return os.environ.get("NCCLKIT_DASK_INTERFACE") or None
