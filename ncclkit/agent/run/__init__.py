"""Ranks on compute nodes: the guard that ends them, the crash handler, the live test and its stages."""
