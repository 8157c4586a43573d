"""One module for each version of the catalog, never changed once it is released."""
