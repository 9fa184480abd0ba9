"""Training drafters, and which text is kept out of it."""
