"""The jobs of the five stories, each a small honest program of its kind.

Their verb is ``stories.NAME``.  In: the words of a command line.  Out: records of what the job
measured.  What a job needs beside torch is imported in the rank process, and what is missing is
said in one sentence.

Begin with `interactions.main`, the recommender of the first story.
"""
