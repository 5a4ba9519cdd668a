"""Records, the case folder, text, and arithmetic on plain values.

Nothing here reads logs or starts anything.
"""
