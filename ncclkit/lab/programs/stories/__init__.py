"""The jobs of the five stories, each a small honest program of its kind: verb ``stories.NAME``.

What a job needs beside torch is imported in the rank process, and what is missing is said in one
sentence.
"""
