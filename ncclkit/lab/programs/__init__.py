"""The programs of the lab that run as ranks; they travel with the agent in one archive, only for runs of the lab."""
