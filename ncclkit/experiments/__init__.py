"""The closed loop: a baseline run, one change, the comparison, the fix.

The fix comes with its proof.  In: a case with a finding that names an experiment.  Out: records of
the runs that were made, kept in the case, and what they say of each suspect, who said beforehand
what it expects.

Begin with `fixes.close`, the whole loop; `baseline` says what is repeated, `comparison` what a
difference means, `questions` what a person is asked instead.
"""
