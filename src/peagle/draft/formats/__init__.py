"""Public drafter checkpoints, read and written: vLLM's raw form and the speculators library's."""
