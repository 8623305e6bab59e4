"""The workbench: edit a run in the browser."""
