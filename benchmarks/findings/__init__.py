"""The questions of docs/results/findings.md, a module each: ``python -m benchmarks.findings --help``."""
