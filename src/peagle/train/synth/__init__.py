"""Training text that a target writes itself: prompts, answers, and the file they go to."""
