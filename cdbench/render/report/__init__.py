"""One self-contained HTML page of one run or of several, and its pictures as files."""
