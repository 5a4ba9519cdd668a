"""What the lines of each program mean."""
