"""The connection test between hosts: names, ports, packet sizes, speed and clocks, without a job."""
