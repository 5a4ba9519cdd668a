"""The Flight Recorder: safe reading of dumps, and what they say together.

In: the bytes of each rank's dump, of any schema version, within limits.  Out: the calls of that
rank, and events of what differs between the ranks.  No pickle runs code.

Begin with `dumps.loads`, then `compare.analyse`; `hang.find_hang` says where a group stalls.
"""
