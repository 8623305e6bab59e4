from hypothesis import settings

# The first call of a compiled function loads it; timing single examples says nothing here.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")
