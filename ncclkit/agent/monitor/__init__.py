"""What processes of a running job do.

In: process ids, or a run of ours.  Out: records of stacks, Flight Recorder, RAS, and the telemetry
of hosts, GPUs and ranks.  Of somebody else's job no process is signalled.
Begin with `attach.collect_and_sample`, which looks at ranks that hang; `telemetry.Sampler` watches
a run while it goes on.
"""
