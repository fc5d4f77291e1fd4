"""From captured attention to what a report holds: one batch measured, batches joined, theory, and the cache of runs."""
