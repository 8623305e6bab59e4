"""Data quality: label errors, duplicates, outliers."""
