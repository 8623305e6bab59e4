"""PromptSRC: prompts in both towers of a ViT, regularised by what the frozen towers say."""
