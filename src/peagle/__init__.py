"""Self-hosted P-EAGLE: parallel speculative decoding whose output is the target's own."""
