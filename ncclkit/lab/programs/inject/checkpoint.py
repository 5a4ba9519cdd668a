"""What the training job keeps of itself after each step.

By it the job can go on where it was ended.
"""

import json
import os


def folder(job):
    """Where the checkpoint lies.

    Its name is hidden, as it is not evidence.
    """
    path = os.path.join(job.options.folder, ".checkpoint")
    os.makedirs(path, exist_ok=True)
    return path


def save(job, model):
    """Save a checkpoint after a step.

    Each rank saves its position in the data, rank 0 the model.
    """
    job.positions.append(job.position)
    _write_whole(_loader_path(job), lambda path: _dump_value(job.positions, path))
    if job.rank == 0:
        kept = {"steps": len(job.positions), "model": model.state_dict()}
        _write_whole(_model_path(job), lambda path: job.torch.save(kept, path))


def load(job, model):
    """Go on from the last step that rank 0 has kept, if any.

    It sets `model` and the position in the data.
    """
    if not os.path.exists(_model_path(job)):
        return
    kept = job.torch.load(_model_path(job), map_location=job.device, weights_only=True)
    model.load_state_dict(kept["model"])
    job.positions = _loader_positions(job)[: kept["steps"]]
    job.position = job.positions[-1]


def position(job):
    """How far this rank was in its data; 0 before any step.

    It is told as of the last step that was kept.
    """
    return (_loader_positions(job) or [0])[-1]


def gather(job, own):
    """What every rank has, by rank.

    It is sent as JSON: `all_gather_object` executes what comes, also from who got between.
    """
    encoded = json.dumps(own).encode()
    longest = job.torch.tensor([len(encoded)], device=job.device)
    job.dist.all_reduce(longest, op=job.dist.ReduceOp.MAX)
    mine = job.torch.tensor(
        list(encoded.ljust(int(longest))), dtype=job.torch.uint8, device=job.device
    )
    each = [job.torch.empty_like(mine) for _ in range(job.ranks)]
    job.dist.all_gather(each, mine)
    return [json.loads(bytes(row.tolist())) for row in each]


def _loader_positions(job):
    if not os.path.exists(_loader_path(job)):
        return []
    with open(_loader_path(job)) as file:
        return json.load(file)


def _model_path(job):
    return os.path.join(folder(job), "model.pt")


def _loader_path(job):
    return os.path.join(folder(job), "loader_rank%d.json" % job.rank)


def _dump_value(value, path):
    with open(path, "w") as file:
        json.dump(value, file)


def _write_whole(path, how):
    """Write a file whole or not at all.

    The rank may be killed at any moment.
    """
    how(path + ".part")
    os.replace(path + ".part", path)
