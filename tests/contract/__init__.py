"""One behavioural suite over every back end of the store."""
