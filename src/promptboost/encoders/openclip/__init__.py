"""Encoders of open_clip: CLIP and its many descendants, their text towers and deep prompts."""
