"""What to propose: the P-EAGLE network, the text sources, and the candidate tree."""
