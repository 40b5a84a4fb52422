"""The pictures of a report, one file each, drawn by matplotlib without a display."""
