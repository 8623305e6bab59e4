"""Baselines that every fit is measured beside, and the contract of all methods."""
