"""The baselines of every fit, and the measures of predictions."""
