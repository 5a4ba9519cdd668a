"""Ways to choose the GPU of a rank, by name: half of them leave two ranks on one."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

local = int(os.environ["LOCAL_RANK"])


def train(model, device="cuda"):
    model(torch.ones(2, 4, device=device)).sum().backward()


def set_nothing():
    dist.init_process_group("nccl")
    train(DistributedDataParallel(torch.nn.Linear(4, 4).cuda()))  # LINE: set_nothing


def name_first():
    device = torch.device("cuda:0")
    dist.init_process_group("nccl")
    model = torch.nn.Linear(4, 4).to(device)  # LINE: name_first
    train(DistributedDataParallel(model), device)


def set_half():
    torch.cuda.set_device(local // 2)  # LINE: set_half
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(4).cuda())


def metric_on_current():
    device = torch.device("cuda", local)
    dist.init_process_group("nccl")
    model = torch.nn.Linear(4, 4).to(device)
    train(DistributedDataParallel(model, device_ids=[local]), device)
    dist.all_reduce(torch.tensor([1.0], device="cuda"))  # LINE: metric_on_current


def objects_on_current():
    device = torch.device("cuda", local)
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(4, device=device))
    dist.all_gather_object([None] * dist.get_world_size(), local)  # LINE: objects_on_current


def send_to_next():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    values = torch.full((4,), rank, device="cuda")  # LINE: send_to_next
    if rank % 2:
        dist.recv(values, rank - 1)
    else:
        dist.send(values, rank + 1)


def healthy_set_local():
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    train(DistributedDataParallel(torch.nn.Linear(4, 4).cuda()))
    dist.all_gather_object([None] * dist.get_world_size(), local)
    dist.barrier()


def healthy_one_is_visible():
    os.environ["CUDA_VISIBLE_DEVICES"] = str(local)
    assert torch.cuda.device_count() == 1
    dist.init_process_group("nccl")
    train(DistributedDataParallel(torch.nn.Linear(4, 4).to("cuda:0")))


def healthy_gloo():
    dist.init_process_group("gloo")
    train(DistributedDataParallel(torch.nn.Linear(4, 4)), "cpu")


def healthy_cpu_beside_gpus():
    # without a name both are there: gloo for tensors of the CPU
    dist.init_process_group()
    losses = torch.ones(4, device="cuda").cpu()
    dist.all_reduce(losses)
    dist.all_gather_object([None] * dist.get_world_size(), local)


def healthy_named():
    device = torch.device("cuda", local)
    dist.init_process_group("nccl", device_id=device)
    model = torch.nn.Linear(4, 4).to(device)
    train(DistributedDataParallel(model, device_ids=[local], output_device=local), device)
    dist.all_reduce(torch.ones(4).to(local))
    dist.barrier(device_ids=[local])


def healthy_within():
    dist.init_process_group("nccl")
    with torch.cuda.device(local):
        dist.all_reduce(torch.ones(4, device="cuda"))


def healthy_two_of_each():
    dist.init_process_group("nccl")
    first = torch.nn.Linear(4, 4).to(2 * local)
    second = torch.nn.Linear(4, 4).to(2 * local + 1)
    for layer in (first, second):
        for weights in layer.parameters():
            dist.all_reduce(weights.data)


def healthy_mesh():
    mesh = init_device_mesh("cuda", (dist_size(),))
    model = torch.nn.Linear(4, 4).cuda()
    fully_shard(model, mesh=mesh)
    train(model)


def healthy_shards():
    # the library asks for a mesh by itself
    dist.init_process_group("nccl")
    model = fully_shard(torch.nn.Linear(4, 4))
    train(model)


def healthy_inputs_are_moved():
    dist.init_process_group("nccl")
    train(FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=local))


def healthy_alone():
    dist.init_process_group("nccl")
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    dist.all_reduce(torch.ones(4, device="cuda"), group=groups[dist.get_rank()])


def healthy_too_late():
    # whether CUDA still reads it depends on the version; nobody is accused
    torch.cuda.set_device(0)
    os.environ["CUDA_VISIBLE_DEVICES"] = str(local)
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(4, device="cuda"))


def healthy_default():
    torch.set_default_device(f"cuda:{local}")
    dist.init_process_group("nccl")
    torch.ones(2).to("cuda")
    values = torch.ones(4)
    dist.all_reduce(values)


def healthy_checkpoint():
    device = torch.device("cuda", local)
    torch.cuda.set_device(device.index)
    dist.init_process_group("nccl")
    path = f"checkpoint-{local}.pt"
    torch.save(torch.ones(4, device=device), path)
    values = torch.load(path, map_location=device)
    values += torch.load(path, map_location={"cuda:0": f"cuda:{local}"})
    os.remove(path)
    dist.all_reduce(values)
    assert torch.device(local).index == local


def healthy_compiled():
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    @torch.compile(backend="eager")
    def double(values):
        return values.to(device) * 2 + torch.ones(4, device="cuda")

    dist.all_reduce(double(torch.ones(4)))


def dist_size():
    return int(os.environ["WORLD_SIZE"])


globals()[sys.argv[1]]()
