"""The split-K tail: which sums lose their last values of k, by rule, by search and by counting on a device; tables and the report of it."""
