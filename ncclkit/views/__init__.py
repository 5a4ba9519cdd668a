"""Views: each function returns one object with two faces.

One face is a widget for a person, the other static HTML for a report.  In: a case, a diagnosis or a
run.  Out: a `View`, or a `Form`, which one cell shows and the next awaits.  What they draw is
worked out in `ncclkit.analysis`.

Begin with `_base.View` and `_form.Form`, then `banner.banner_view`, the answer in short.
"""
