"""From bytes to the few lines that matter, in bounded memory.

In: the bytes of a log, however large.  Out: events of the lines that hold a literal of some
grammar, with time, rank, host and process of each.

Begin with `scan.blocks`, which cuts the bytes; `pieces.scan_piece` reads a part of a large file,
`prefix` what stands before a message, `plain` undoes quoting and wrapping.
"""
