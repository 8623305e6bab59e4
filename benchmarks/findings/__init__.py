"""The questions of docs/findings.md, one module each: see ``python -m benchmarks.findings --help``."""
