"""LLMbo: a language model proposes templates, and is shown how they fared."""
