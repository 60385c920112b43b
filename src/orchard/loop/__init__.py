"""Online learning: rollouts to groups to samples to weights."""
