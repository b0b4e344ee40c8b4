"""Models: specs, weights and the one decoder."""
