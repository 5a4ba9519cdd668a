"""The programs of the lab that run as ranks.

They travel with the agent in one archive, only for runs of the lab.
"""
