"""Faults of one rank at one step.

They are in its own program, which fails as user code does, and in calls that all ranks make.
Stacks and tracebacks of these functions are what the diagnosis has to find.  Each has its right
way, taken where the job is started with ``--fix CAUSE`` for the cause of that bug.
"""

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import struct
import threading
import time

from ncclkit.agent.run import crash_handler, processes
from ncclkit.lab.programs.inject import checkpoint

CLASSES = 10
"""Rows of the table that `cuda_assert` looks its labels up in."""


def rank_late(job):
    """This rank resumes: it replays its data while the others wait.

    The right way restores the loader's position.
    """
    if job.fixed("slow_rank"):
        job.position = checkpoint.position(job)
    else:
        skip_batches(job.data, job.seconds)


def skip_batches(dataset, seconds):
    """Replay a dataset without training on it, as a naive resume does, for this long."""
    until, skipped, rows = time.monotonic() + seconds, 0, len(dataset)
    while time.monotonic() < until:
        dataset[skipped % rows].sum()
        skipped += 1
    return skipped


def rank_raises(job):
    """This rank meets a sample that its preprocessing rejects.

    The right way leaves it out and counts it.
    """
    samples = {1206: job.data[:8], 1207: job.data[:0], 1208: job.data[8:16]}
    bad = 0
    for number, frames in samples.items():
        try:
            preprocess(number, frames)
        except ValueError as error:
            if not job.fixed("rank_exception"):
                raise
            bad += 1
            print("left out: %s" % error)
    print("%d of %d samples left out" % (bad, len(samples)))


def preprocess(number, frames):
    """Fails as user code does: on data that only one rank has."""
    if frames.shape[0] == 0:
        raise ValueError(
            "sample %d has 0 frames after trimming; every sample needs at least one" % number
        )
    return frames - frames.mean()


def rank_killed(job):
    """This rank is killed from outside, once.

    A job that is restarted goes on, from its checkpoint in the right way.
    """
    if job.attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def segfault(job):
    """This rank reads what a C library returned, which is address 0.

    The right way looks before it reads.
    """
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    address = library.getenv(b"NCCLKIT_NO_SUCH_INDEX")
    if address is None and job.fixed("rank_exception"):
        print("the library returned no index; going on without it")
    else:
        ctypes.string_at(address or 0)


def gil_held(job):
    """This rank sits in native code that keeps the GIL.

    The right way lets go of it.
    """
    if job.fixed("gil_hold"):
        threading.Thread(
            target=ctypes.CDLL(None).sleep, args=(int(job.seconds),), daemon=True
        ).start()
        return
    # as nothing may end it early
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    ctypes.PyDLL(None).sleep(int(job.seconds))


def slow_disk(job):
    """This rank's checkpoint goes to storage that stalls.

    The right way writes it beside the training.
    """
    # takes 64 KiB and then nothing more, as a network file system whose server is gone
    _, storage = os.pipe()
    if job.fixed("disk_or_io"):
        threading.Thread(target=write_shard, args=(job, storage), daemon=True).start()
    else:
        write_shard(job, storage)


def write_shard(job, storage):
    """Write this rank's 1 MiB of a checkpoint to an open descriptor."""
    with os.fdopen(storage, "wb") as file:
        job.torch.save({"rows": job.torch.zeros(1 << 18)}, file)


def small_shm(job):
    """This rank's /dev/shm is a small one of its own.

    A loader's worker hands batches over there; the right way makes it larger, as `docker run
    --shm-size` does.
    """
    _own_shm("1g" if job.fixed("shm_too_small") else "2m")
    _load_rows(job, [job.data.repeat(64, 1)] * 4)  # 4 MiB each


def _own_shm(size):
    """A /dev/shm that nobody but this process and its children sees, and that goes with them."""
    _mount_here("tmpfs", "/dev/shm", "size=" + size)


def _mount_here(kind, place, options):
    """Mount a file system that nobody but this process and its children sees.

    Raises OSError where that cannot be done.
    """
    library = ctypes.CDLL(None, use_errno=True)
    # MS_REC | MS_PRIVATE: no mount of ours is seen outside
    private = ctypes.c_ulong(0x4000 | 0x40000)
    if library.unshare(0x20000) or library.mount(b"none", b"/", None, private, None):  # CLONE_NEWNS
        raise PermissionError(
            ctypes.get_errno(), "a %s of its own needs root (CAP_SYS_ADMIN)" % place
        )
    if library.mount(
        kind.encode(), place.encode(), kind.encode(), ctypes.c_ulong(0), options.encode()
    ):
        raise OSError(ctypes.get_errno(), "cannot mount %s with %s on %s" % (kind, options, place))


def stalled_file(path, seconds):
    """Make a file whose reads do not return.

    It is on a dead disk where this process may mount one, else a FIFO.  The disk is a file system
    of FUSE that answers everything but reads, for so many seconds.  Who reads waits in state D, as
    on network storage whose server is gone, and only SIGKILL ends it.  The mount goes with this
    process.
    """
    path.touch()
    device = -1
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        who = os.getuid(), os.getgid()
        _mount_here(
            "fuse", str(path), "fd=%d,rootmode=100000,user_id=%d,group_id=%d" % (device, *who)
        )
    except OSError:
        if device >= 0:
            os.close(device)
        path.unlink()
        os.mkfifo(path)  # who opens it waits until somebody writes
        return
    # a process of its own: its end aborts what still waits, which a thread that dies with the
    # reader cannot
    parent = os.getpid()
    if not os.fork():
        try:
            _serve_file(device, parent, time.monotonic() + seconds)
        finally:
            os._exit(0)
    os.close(device)


INIT, GETATTR, OPEN = 26, 3, 14
UNANSWERED = (15, 2, 36, 42)
"""Numbers of requests of linux/fuse.h to which there is no answer.

They are READ, and FORGET, INTERRUPT and BATCH_FORGET.
"""
REQUEST = 1 << 17
"""Bytes of the largest request."""
ASYNC_READ, NO_FLUSH = 1, 32
"""Flags of linux/fuse.h.

A reader waits for the page, which a kill ends, and not for the request; closing asks nobody.
"""


def _serve_file(device, parent, until):
    """Answer the kernel's requests for one file of 1 MiB, except its reads."""
    processes.die_with_parent(parent)
    # meant for the rank, whom no dead disk answers because of it
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(0, device)  # the rank's sockets and pipes have to close with the rank
    os.closerange(device + 1, 1 + max(map(int, os.listdir("/proc/self/fd"))))
    owner = os.getuid(), os.getgid()
    attributes = struct.pack(
        "<6Q10I", 1, 1 << 20, 2048, 0, 0, 0, 0, 0, 0, 0o100444, 1, *owner, 0, 4096, 0
    )
    answers = {
        INIT: struct.pack(
            "<4I2H2I2H8I", 7, 31, REQUEST, ASYNC_READ, 12, 9, REQUEST - 4096, 1, 1, 0, *[0] * 8
        ),
        OPEN: struct.pack("<Q2I", 1, NO_FLUSH, 0),
        GETATTR: struct.pack("<Q2I", 3600, 0, 0) + attributes,
    }
    while (
        time.monotonic() < until
        and select.select([device], [], [], max(0.0, until - time.monotonic()))[0]
    ):
        _, code, number = struct.unpack_from("<2IQ", os.read(device, REQUEST))
        if code not in UNANSWERED:
            content = answers.get(code, b"")
            failed = 0 if content else -errno.ENOSYS
            os.write(device, struct.pack("<IiQ", 16 + len(content), failed, number) + content)


def forked_cuda(job):
    """A loader's worker, forked from this rank, puts batches on the GPU.

    The right way leaves that to the rank.
    """
    there = "cpu" if job.fixed("fork_or_init_order") else job.device
    _load_rows(job, job.data, lambda rows: job.torch.stack(rows).to(there))


def _load_rows(job, rows, collate=None):
    """Read all rows through a worker process of its own, and move each batch to the device."""
    from torch.utils.data import DataLoader

    for batch in DataLoader(
        rows, collate_fn=collate, num_workers=1, multiprocessing_context="fork"
    ):
        batch.to(job.device)


def cuda_assert(job):
    """This rank looks up a class that does not exist, in a kernel.

    The right way looks at the labels before.
    """
    labels = job.torch.arange(90, 122, device=job.device) % 99
    if job.fixed("cuda_error"):
        labels = labels[labels < CLASSES]
    job.torch.nn.functional.cross_entropy(
        job.torch.zeros(len(labels), CLASSES, device=job.device), labels
    )
    job.synchronize()


def gpu_memory_full(job):
    """This rank asks for twice the memory of its GPU at once.

    The right way takes its batch in pieces.
    """
    total = job.torch.cuda.get_device_properties(job.device).total_memory
    pieces = 128 if job.fixed("gpu_oom") else 1
    for _ in range(pieces):
        job.torch.empty(2 * total // pieces, dtype=job.torch.uint8, device=job.device).fill_(1)
    job.synchronize()


def flood(job):
    """This rank prints 100 MB."""
    for _ in range(1000):
        print(("a line that nobody reads " * 4096)[:100_000])


def mute(job):
    """This rank says nothing any more.

    Its standard output and its standard error lead nowhere.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def asleep(job):
    """This rank does nothing for a while."""
    time.sleep(job.seconds)


def stuck_among_many(job):
    """This rank stops for good when it is asked by several others.

    It stops as soon as they want something of it at once.
    """
    asleep(job)


def slow_among_many(job):
    """This rank takes its time for calls of several others.

    It does for each call in which they want something of it at once.
    """
    time.sleep(0.5)


OTHER_NCCL = "NCCLKIT_OTHER_NCCL"
"""Variable that names the library of `other_nccl`."""
LARGE, PIECE = 512 << 20, 16 << 20
"""Bytes of the dataset of `little_memory`, and of the pieces in which a careful loader reads it."""


def uneven_data(job):
    """This rank's data ends before the others' does.

    `equal_steps` is the right way.
    """
    job.steps //= 2


def equal_steps(job):
    """All ranks train as many steps as the rank with the least data.

    They agree on that once the group exists.
    """
    if job.fixed("rank_divergence"):
        fewest = job.torch.tensor([job.steps], device=job.device)
        job.dist.all_reduce(fewest, op=job.dist.ReduceOp.MIN)
        job.steps = int(fewest.item())


def few_files(job):
    """This rank's shell allows it three files more.

    The right way raises that to the hard limit, as a program may.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
    if job.fixed("fd_limit"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def little_memory(job):
    """This rank may use little more host memory while it loads.

    The right way loads its data in pieces.
    """
    size = PIECE if job.fixed("host_oom") else LARGE
    with limited_memory(LARGE // 2):
        for _ in range(LARGE // size):
            job.torch.empty(size, dtype=job.torch.uint8).fill_(1)


@contextlib.contextmanager
def limited_memory(size):
    """Let this process take so many bytes of host memory while the block runs.

    They come beside what it has.
    """
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def world_larger(job):
    """This rank's own configuration counts one rank too many.

    It is one more than the launcher started.
    """
    configured = job.ranks + 1
    os.environ["WORLD_SIZE"] = str(job.ranks if job.fixed("world_size_mismatch") else configured)


def other_card(job):
    """This rank's host lacks the network interface of the job's configuration.

    The name is given to all ranks.
    """
    if not job.fixed("ifname_not_found"):
        os.environ["%s_SOCKET_IFNAME" % job.options.backend.upper()] = "eth97"


def port_busy(job):
    """This rank opens a store of its own on MASTER_PORT.

    The launcher's store already listens there.
    """
    port = 0 if job.fixed("port_in_use") else int(os.environ["MASTER_PORT"])
    # with it, torch would not mind that the port is taken
    agent_store = os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", "")
    job.store = job.dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = agent_store


def mixed_nccl(job):
    """This rank's host loads another libnccl before torch's own.

    The right way leaves that out of its environment.
    """
    library = os.environ[OTHER_NCCL]
    if job.fixed("version_mismatch") or os.environ.get("LD_PRELOAD") == library:
        return
    os.environ["LD_PRELOAD"] = library
    crash_handler.restart_in_place()  # the loader looks at the variable only when a program starts


COUNT = 1024
"""Elements that a rank brings to a call."""


def other_size(job):
    """All ranks average a metric of their last batch, and one's is larger.

    It is the faulty rank's; the right way cuts it.
    """
    metric = job.torch.ones(2 * COUNT if job.faulty_here else COUNT, device=job.device)
    _reduce_metric(job, metric[:COUNT].clone() if job.fixed("shape_mismatch") else metric)


def other_dtype(job):
    """All ranks average a metric, and the faulty one computed it in double precision.

    The right way casts it.
    """
    own = job.torch.float64 if job.faulty_here else job.torch.float32
    metric = job.torch.ones(COUNT, device=job.device, dtype=own)
    _reduce_metric(job, metric.to(job.torch.float32) if job.fixed("shape_mismatch") else metric)


def other_op(job):
    """All ranks average a metric.

    The faulty one gathers it and averages by itself, where the others reduce.
    """
    metric = job.torch.ones(COUNT, device=job.device)
    if job.faulty_here and not job.fixed("rank_divergence"):
        job.dist.all_gather([job.torch.empty_like(metric) for _ in range(job.ranks)], metric)
        job.synchronize()
    else:
        _reduce_metric(job, metric)


def _reduce_metric(job, metric):
    job.dist.all_reduce(metric)
    job.synchronize()


def unpaired_recv(job):
    """The faulty rank waits for a message that its neighbour never sends.

    The right way pairs receives with sends.
    """
    received = job.torch.empty(COUNT, device=job.device)
    after, before = (job.rank + 1) % job.ranks, (job.rank - 1) % job.ranks
    if job.fixed("send_recv_mismatch"):
        sent = job.torch.ones(COUNT, device=job.device)
        pair = [
            job.dist.P2POp(job.dist.isend, sent, before),
            job.dist.P2POp(job.dist.irecv, received, after),
        ]
        for work in job.dist.batch_isend_irecv(pair):
            work.wait()
    elif job.faulty_here:
        job.dist.recv(received, src=after)
    job.synchronize()


def exchange_uneven(job):
    """An all_to_all for which the faulty rank expects other sizes than come.

    The right way sends the sizes first.
    """
    give, take = [256] * job.ranks, [256] * job.ranks
    if job.faulty_here:
        # gloo refuses what is too much and ignores what never comes.  NCCL waits for it, if it is
        # more than a chunk:
        # with 2 KiB instead of 1 KiB a rank of another host sends, over sockets, the job went on
        # with wrong data
        take[(job.rank + 1) % job.ranks] = 4 << 20 if job.device.type == "cuda" else 128
    if job.fixed("send_recv_mismatch"):
        incoming = job.torch.empty(job.ranks, dtype=job.torch.int64, device=job.device)
        job.dist.all_to_all_single(incoming, job.torch.tensor(give, device=job.device))
        take = incoming.tolist()
    received = job.torch.empty(sum(take), device=job.device)
    job.dist.all_to_all_single(received, job.torch.ones(sum(give), device=job.device), take, give)
    job.synchronize()


def groups_swapped(job):
    """Two groups of the same ranks are used one after the other.

    The faulty rank uses them in the other order.
    """
    ranks, limit = list(range(job.ranks)), job.timeout
    one, two = (
        job.dist.new_group(ranks, timeout=limit, group_desc=name) for name in ("experts", "data")
    )
    swapped = job.faulty_here and not job.fixed("concurrent_comms")
    for group in (two, one) if swapped else (one, two):
        job.dist.all_reduce(job.torch.ones(COUNT, device=job.device), group=group)
        job.synchronize()


def long_first_step(job):
    """All ranks queue GPU work for longer than a collective's limit.

    The collective is behind it; the right way waits for the work before it calls the collective,
    whose clock begins with the call.
    """
    # about 2 GHz; it stands for compiling and warming up
    job.torch.cuda._sleep(int(job.seconds * 2e9))
    if job.fixed("timeout_too_short"):
        job.synchronize()
    _reduce_metric(job, job.torch.ones(COUNT, device=job.device))
