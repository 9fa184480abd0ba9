"""What runs inside a peer's own environment; it imports nothing of peagle but its own siblings.

`peagle.evaluate.bench.process` starts these modules with another environment's Python, which has
neither peagle nor its dependencies, so siblings are imported relatively. `run_peagle` is the
exception: it is our own engine behind the same protocol.
"""
