"""The lab: small jobs that are broken on purpose, and their course.

A wing of the house: nothing outside imports it but its own verbs.  In: the name of a fault or a
story.  Out: a run that is broken in that way, its recording, questions and an examination.

Begin with `faults.injection.inject`, which breaks a job; `programs` run as ranks, `course` and
`views` make the stories, `exam` the examination.
"""
