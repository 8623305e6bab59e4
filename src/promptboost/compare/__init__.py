"""Evidence: plan, run what is not there yet, tables and figures."""
