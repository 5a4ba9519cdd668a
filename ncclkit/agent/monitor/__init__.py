"""What processes of a running job do.

Stacks, Flight Recorder, RAS, and the telemetry of hosts, GPUs and ranks.
"""
