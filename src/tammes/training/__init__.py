"""Training: configuration, objectives, the loop, checkpoints, the run folder, evaluation and the verdict."""
