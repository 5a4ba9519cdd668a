"""The agent: what runs on compute nodes, under the training interpreter.

Standard library only (``torch`` only inside the rank processes), Python >= 3.9,
nothing of the workbook.  It travels as one file, ``agent.pyz``.
"""
