"""One module a step; once released, a step is never changed."""
