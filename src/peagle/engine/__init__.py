"""The step: what to run next, the target's choices along the tree, and when an answer ends."""
