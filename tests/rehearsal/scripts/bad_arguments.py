"""A script whose arguments are wrong: all ranks leave before they communicate."""

import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
options = parser.parse_args()
dist.init_process_group("gloo")
dist.barrier()
