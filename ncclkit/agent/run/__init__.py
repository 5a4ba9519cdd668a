"""Ranks on compute nodes.

The guard that ends them, the crash handler, the live test and its stages.
"""
