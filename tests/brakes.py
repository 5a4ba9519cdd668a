"""A brake for jobs over gloo that are started with it as ``sitecustomize.py`` on PYTHONPATH."""

_GLOO = """
import os
if "RANK" in os.environ:
    import time
    import torch.distributed as dist
    make, whole, slow = dist.new_group, dist.all_reduce, set()
    def bad():
        return os.environ.get("GLOO_SOCKET_IFNAME") == "lo,lo"
    def made(*words, **named):
        group = make(*words, **named)
        if bad():
            slow.add(group)
        return group
    def late(*words, group=None, **named):
        time.sleep(SLOW if group in slow or (group is None and bad()) else USUAL)
        return whole(*words, group=group, **named)
    dist.new_group, dist.all_reduce = made, late
"""


def gloo(slow: float, usual: float) -> str:
    """The text that makes calls take `slow` seconds through groups that are made while one variable has one value.

    That is what a bad environment does.  All others take `usual` seconds, too: what a busy machine adds to that is
    little, so that a test says the same on any.
    """
    return _GLOO.replace("SLOW", str(slow)).replace("USUAL", str(usual))


GLOO = gloo(0.03, 0.01)
