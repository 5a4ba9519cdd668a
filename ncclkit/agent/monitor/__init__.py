"""What processes of a running job do: stacks, Flight Recorder, RAS, and the telemetry of hosts, GPUs and ranks."""
