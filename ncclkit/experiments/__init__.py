"""The closed loop: a baseline run, one change, the comparison, the fix and its proof."""
