"""The protocols between the parts: the store by noun, what kinds bring, what is outside."""
