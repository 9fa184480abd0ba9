"""Measuring what the engine does: workloads, acceptance, and the machine."""
