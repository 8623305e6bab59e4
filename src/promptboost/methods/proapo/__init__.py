"""ProAPO: templates, then the sentences of each class, by evolution."""
