"""Recovery: from the tree that walks read to the one schedule, and GEMMDesc, that gives the library's bytes."""
