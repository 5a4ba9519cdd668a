"""The connection test between hosts.

Names, ports, packet sizes, speed and clocks, without a job.
"""
