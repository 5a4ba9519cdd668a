"""The connection test between hosts, without a job.

It tests names, ports, packet sizes, speed and clocks.  In: the hosts, and how a program is started
there.  Out: records of each path between two of them.

Begin with `session.coordinate`, one coordinator for all hosts; `worker.Worker` is what each host
runs.
"""
