"""The job behind the events: its communicators, its ranks, where they disagree."""
