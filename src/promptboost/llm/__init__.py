"""Language models: descriptions of classes, requested within a budget."""
