"""The connection test between hosts: names, ports, packet sizes, speed and clocks, without a job.

In: the hosts, and how a program is started there.  Out: records of each path between two of them.
Begin with `session.coordinate`, one coordinator for all hosts; `worker.Worker` is what each
host runs.
"""
