"""Views: each function returns one object with two faces, a widget for a person and static HTML for
a report.
"""
