"""What moved between two libraries: the run, its rows, its dataset and the report of it."""
