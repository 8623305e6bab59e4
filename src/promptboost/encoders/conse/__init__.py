"""ConSE encoders: an image classifier and a sentence encoder that meet in class names."""
