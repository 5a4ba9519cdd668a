"""The forms and views of the course.

In: a case folder of the lab, or what its runs measured.  Out: views, as `ncclkit.views` has them.

Begin with `faulty_run.LabForm`, the form that breaks a job; `course` draws what the stories
measure, `questions` asks before and after.
"""
