"""SyncBatchNorm over uneven batches gives what BatchNorm gives over all of them at once."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(0)
batches = [torch.randn(2 + peer, 3, 4, 4) for peer in range(world)]
alone = torch.nn.BatchNorm2d(3)
torch.nn.init.uniform_(alone.weight)
layer = torch.nn.BatchNorm2d(3)
layer.load_state_dict(alone.state_dict())
layer = torch.nn.SyncBatchNorm.convert_sync_batchnorm(layer).cuda()
model = DistributedDataParallel(layer, device_ids=[rank])

whole = torch.cat(batches).requires_grad_()
expected = alone(whole)
expected.pow(3).sum().backward()
own = batches[rank].cuda().requires_grad_()
result = model(own)
result.pow(3).sum().backward()

first = sum(len(batch) for batch in batches[:rank])
part = slice(first, first + len(own))
torch.testing.assert_close(result.cpu(), expected[part])
torch.testing.assert_close(own.grad.cpu(), whole.grad[part])
torch.testing.assert_close(layer.weight.grad.cpu() * world, alone.weight.grad)
torch.testing.assert_close(layer.running_var.cpu(), alone.running_var)
model.eval()
assert model(own).shape == own.shape
print(f"loss {[rank]}\n", end="", flush=True)
dist.barrier()
dist.destroy_process_group()
