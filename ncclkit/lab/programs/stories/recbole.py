"""Story 1 with RecBole itself (PyPI).

It has RecBole's configuration, dataset and trainer, and a shortage before that.  RecBole's source
names NCCL and ``torch.cuda``; over gloo these names are replaced while it starts, and nothing else.
"""

import importlib
import os
import random
from types import SimpleNamespace

from ncclkit.agent import wire
from ncclkit.agent.run import crash_handler
from ncclkit.lab.programs import inject
from ncclkit.lab.programs.stories.interactions import SHORTAGES


def main(argv):
    """``stories.recbole --folder DIR --backend gloo [--steps EPOCHS --fault NAME --rank R --fix
    CAUSE]``.
    """
    options = inject.parser("stories.recbole", 2, "epochs", SHORTAGES).parse_args(argv)
    return crash_handler.run_rank(options.folder, lambda rank: _train(options, rank))


def _train(options, rank):
    import torch

    job = inject.LabJob(torch, options, options.steps)
    wire.send("phase", phase="import", rank=rank, torch=torch.__version__)
    recbole = _recbole()
    _ask_for(job)
    own = os.path.join(options.folder, ".recbole")
    os.makedirs(own, exist_ok=True)
    os.chdir(own)  # RecBole and its TensorBoard write where the program was started
    config = recbole.Config("BPR", "lab", config_dict=_recbole_settings(job))
    config["device"] = job.device
    wire.send("phase", phase="init", rank=rank)
    dataset = recbole.create_dataset(config)
    SHORTAGES.get(options.fault, lambda job: None)(job)
    train = recbole.data_preparation(config, dataset)[0]
    model = recbole.get_model("BPR")(config, train._dataset).to(config["device"])
    # DDP's constructor: the first collective
    trainer = recbole.get_trainer(config["MODEL_TYPE"], "BPR")(config, model)
    wire.send("phase", phase="step", rank=rank, step=0)
    trainer.fit(train, saved=False, show_progress=False)
    job.end()


def _ask_for(job):
    """Let RecBole start with this job's timeout and backend.

    It has no options for these.
    """
    torch, start = job.torch, job.dist.init_process_group

    def begin(**asked):
        start(**{**asked, "backend": job.options.backend, "timeout": job.timeout})

    torch.distributed.init_process_group = begin
    if job.device.type != "cuda":
        names = vars(importlib.import_module("recbole.trainer.trainer"))
        own = names["DistributedDataParallel"]
        names["DistributedDataParallel"] = lambda model, device_ids: own(model)
        torch.cuda.set_device = lambda device: None


def _recbole():
    """What is used of RecBole, by name.

    It is one sentence where RecBole cannot be imported.
    """
    try:
        numpy = importlib.import_module("numpy")
        for gone, now in (("float_", "float64"), ("complex_", "complex128"), ("unicode_", "str_")):
            # RecBole 1.2.1 still uses these names, which NumPy 2 has dropped
            setattr(numpy, gone, getattr(numpy, now))
        parts = [
            vars(importlib.import_module("recbole." + name)) for name in ("utils", "data", "config")
        ]
    except (ImportError, AttributeError) as error:
        needs = "pip install --no-deps recbole colorlog colorama texttable thop; "
        needs += "pip install scipy scikit-learn tensorboard tabulate"
        raise RuntimeError(
            "RecBole cannot be used by this interpreter (%s); it needs: %s" % (error, needs)
        ) from error
    return SimpleNamespace(**{name: value for part in parts for name, value in part.items()})


def _recbole_settings(job):
    """RecBole's configuration, with the ranks as torchrun has started them."""
    local, host = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    folder = os.path.join(job.options.folder, ".recbole", "rank%d" % job.rank)
    _write_dataset(os.path.join(folder, "lab"))
    return {
        "data_path": folder,
        "checkpoint_dir": folder,
        "epochs": job.steps,
        "show_progress": False,
        "gpu_id": ",".join(map(str, range(host))),
        "local_rank": local,
        "offset": job.rank - local,
        "nproc": host,
        "world_size": job.ranks,
        "ip": os.environ["MASTER_ADDR"],
        "port": os.environ["MASTER_PORT"],
    }


def _write_dataset(folder):
    """A small dataset in RecBole's atomic form, the same on every rank.

    It has 200 users, each with 20 of 300 items.
    """
    os.makedirs(folder)
    chance = random.Random(7)
    with open(os.path.join(folder, "lab.inter"), "w") as out:
        out.write("user_id:token\titem_id:token\n")
        for user in range(200):
            for item in chance.sample(range(300), 20):
                out.write("%d\t%d\n" % (user, item))
