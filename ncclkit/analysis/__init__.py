"""The state of a job, worked out once from its events: causes judge it, views draw it."""
