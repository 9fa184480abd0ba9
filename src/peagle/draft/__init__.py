"""What to propose: drafter networks, the text sources, and the candidate tree."""
