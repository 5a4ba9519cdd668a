"""Faults in calls that all ranks make at one step, in which the faulty one differs.

Each has its right way, taken where the job is started with ``--fix CAUSE`` for the cause of that bug.
"""

COUNT = 1024
"""Elements that a rank brings to a call."""


def other_size(job):
    """All ranks average a metric of their last batch, and the faulty one's batch is larger; the right way cuts it."""
    metric = job.torch.ones(2 * COUNT if job.faulty_here else COUNT, device=job.device)
    _reduce(job, metric[:COUNT].clone() if job.fixed("shape_mismatch") else metric)


def other_dtype(job):
    """All ranks average a metric, and the faulty one computed it in double precision; the right way casts it."""
    own = job.torch.float64 if job.faulty_here else job.torch.float32
    metric = job.torch.ones(COUNT, device=job.device, dtype=own)
    _reduce(job, metric.to(job.torch.float32) if job.fixed("shape_mismatch") else metric)


def other_op(job):
    """All ranks average a metric; the faulty one gathers it and averages by itself, where the others reduce."""
    metric = job.torch.ones(COUNT, device=job.device)
    if job.faulty_here and not job.fixed("rank_divergence"):
        job.dist.all_gather([job.torch.empty_like(metric) for _ in range(job.ranks)], metric)
        job.synchronize()
    else:
        _reduce(job, metric)


def _reduce(job, metric):
    job.dist.all_reduce(metric)
    job.synchronize()


def unpaired_recv(job):
    """The faulty rank waits for a message that its neighbour never sends; the right way pairs receives with sends."""
    received = job.torch.empty(COUNT, device=job.device)
    after, before = (job.rank + 1) % job.ranks, (job.rank - 1) % job.ranks
    if job.fixed("send_recv_mismatch"):
        sent = job.torch.ones(COUNT, device=job.device)
        pair = [job.dist.P2POp(job.dist.isend, sent, before), job.dist.P2POp(job.dist.irecv, received, after)]
        for work in job.dist.batch_isend_irecv(pair):
            work.wait()
    elif job.faulty_here:
        job.dist.recv(received, src=after)
    job.synchronize()


def exchange_uneven(job):
    """An all_to_all for which the faulty rank expects other sizes than come; the right way sends the sizes first."""
    give, take = [256] * job.ranks, [256] * job.ranks
    if job.faulty_here:
        # gloo refuses what is too much and ignores what never comes.  NCCL waits for it, if it is more than a chunk:
        # with 2 KiB instead of 1 KiB a rank of another host sends, over sockets, the job went on with wrong data
        take[(job.rank + 1) % job.ranks] = 4 << 20 if job.device.type == "cuda" else 128
    if job.fixed("send_recv_mismatch"):
        told = job.torch.empty(job.ranks, dtype=job.torch.int64, device=job.device)
        job.dist.all_to_all_single(told, job.torch.tensor(give, device=job.device))
        take = told.tolist()
    received = job.torch.empty(sum(take), device=job.device)
    job.dist.all_to_all_single(received, job.torch.ones(sum(give), device=job.device), take, give)
    job.synchronize()


def groups_swapped(job):
    """Two groups of the same ranks are used one after the other, by the faulty rank in the other order."""
    ranks, limit = list(range(job.ranks)), job.timeout
    one, two = (job.dist.new_group(ranks, timeout=limit, group_desc=name) for name in ("experts", "data"))
    swapped = job.faulty_here and not job.fixed("concurrent_comms")
    for group in (two, one) if swapped else (one, two):
        job.dist.all_reduce(job.torch.ones(COUNT, device=job.device), group=group)
        job.synchronize()


def long_first_step(job):
    """All ranks queue GPU work for longer than the limit of the collective behind it; the right way waits for the work
    before it calls the collective, whose clock begins with the call.
    """
    job.torch.cuda._sleep(int(job.seconds * 2e9))  # about 2 GHz; it stands for compiling and warming up
    if job.fixed("timeout_too_short"):
        job.synchronize()
    _reduce(job, job.torch.ones(COUNT, device=job.device))
