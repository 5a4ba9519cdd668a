"""The lab: small jobs that are broken on purpose, and the course that is made of them."""
