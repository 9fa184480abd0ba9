"""P-EAGLE: a small network that reads the target's features and predicts K tokens in one pass."""
