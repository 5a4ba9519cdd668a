"""SyncBatchNorm on a CPU: torch has its kernels for GPUs only, so these give the same values.

What is sent between ranks stays that of torch: its own function calls the five kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import _functions


def map_batch_norm() -> None:
    """Let SyncBatchNorm, and DDP around it, take tensors of a CPU."""
    for kernel in KERNELS:
        setattr(torch, kernel.__name__, kernel)
    torch.nn.SyncBatchNorm.forward = _forward
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel._passing_sync_batchnorm_handle = lambda self, module: None


def _forward(self: Any, given: Any) -> Any:
    """As of `torch.nn.SyncBatchNorm`, but for the check that its input is on a GPU."""
    self._check_input_dim(given)
    self._check_non_zero_input_channels(given)
    world = 1
    if torch.distributed.is_initialized():
        group = self.process_group or torch.distributed.group.WORLD
        world = torch.distributed.get_world_size(group)
    if not self.training or world == 1:
        return torch.nn.modules.batchnorm._BatchNorm.forward(self, given)
    momentum = self.momentum
    means, variances = None, None
    if self.track_running_stats:
        means, variances = self.running_mean, self.running_var
        self.num_batches_tracked.add_(1)
        if momentum is None:
            momentum = 1.0 / self.num_batches_tracked.item()
    return _functions.SyncBatchNorm.apply(
        given, self.weight, self.bias, means, variances, self.eps, momentum or 0.0, group, world
    )


# ---------------------------------------------------------------- the kernels, as torch calls them


def batch_norm_stats(given: Any, eps: float) -> Any:
    """Mean and 1 / standard deviation of each channel."""
    axes = _all_but_channels(given)
    mean = given.mean(axes)
    variance = given.var(axes, correction=0)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_gather_stats_with_counts(
    given: Any,
    means: Any,
    deviations: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    counts: Any,
) -> Any:
    """The same over all ranks, of which each has a row; running values are updated."""
    total = counts.sum()
    share = (counts / total).unsqueeze(1)
    mean = (share * means).sum(0)
    variances = deviations.pow(-2) - eps
    variance = (share * (variances + (means - mean).square())).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
    if running_var is not None:
        unbiased = variance * total / (total - 1)
        running_var.lerp_(unbiased, momentum)
    return mean, torch.rsqrt(variance + eps)


def batch_norm_elemt(
    given: Any, weight: Any, bias: Any, mean: Any, deviation: Any, eps: float
) -> Any:
    """The normalized values."""
    result = (given - _over_channels(mean, given)) * _over_channels(deviation, given)
    if weight is not None:
        result = result * _over_channels(weight, given)
    if bias is not None:
        result = result + _over_channels(bias, given)
    return result


def batch_norm_backward_reduce(
    gradient: Any, given: Any, mean: Any, deviation: Any, weight: Any, *_: bool
) -> Any:
    """The sums that ranks add up, and the gradients of weight and bias."""
    axes = _all_but_channels(given)
    summed = gradient.sum(axes)
    products = (gradient * (given - _over_channels(mean, given))).sum(axes)
    return summed, products, products * deviation, summed.clone()


def batch_norm_backward_elemt(
    gradient: Any,
    given: Any,
    mean: Any,
    deviation: Any,
    weight: Any,
    summed: Any,
    products: Any,
    counts: Any,
) -> Any:
    """The gradient of the input."""
    total = counts.sum()
    centred = given - _over_channels(mean, given)
    slope = _over_channels(products / total * deviation.square(), given)
    result = gradient - _over_channels(summed / total, given) - centred * slope
    scale = deviation
    if weight is not None:
        scale = deviation * weight
    return result * _over_channels(scale, given)


KERNELS = (
    batch_norm_stats,
    batch_norm_gather_stats_with_counts,
    batch_norm_elemt,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)


def _all_but_channels(tensor: Any) -> list[int]:
    return [axis for axis in range(tensor.dim()) if axis != 1]


def _over_channels(values: Any, tensor: Any) -> Any:
    """One value a channel, in a shape that fits the tensor's."""
    return values.view([1, -1] + [1] * (tensor.dim() - 2))
