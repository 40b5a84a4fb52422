"""What a run amounts to: one table of metric objects, histograms and bounds."""
