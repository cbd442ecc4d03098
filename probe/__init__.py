"""probe: recover, record, rebuild and prove the summation order of a GPU matrix multiplication."""
