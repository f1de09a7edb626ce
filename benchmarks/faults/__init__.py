"""What happens to real runs when something breaks. See `python -m benchmarks.faults --help`."""
