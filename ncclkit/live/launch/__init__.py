"""Launchers: start ranks with the engines that exist, leave nothing behind.

In: a `Plan` of ranks, hosts, variables and a deadline.  Out: records while the ranks run, and how
they ended.

Begin with `base.Launcher`, what each one is; `launchers.launcher_here` chooses, `local` is the
plainest, docs/launchers.md shows how to add one.
"""
