"""What holds for every test."""

from hypothesis import settings

# The machines are shared: a slow example says nothing. The same examples each time, so that a
# change fails by what it changed.
settings.register_profile("tidegate", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tidegate")
