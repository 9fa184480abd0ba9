"""What P-EAGLE and EAGLE-3 networks have in common: shape, weights, arithmetic, sequences."""
