"""What a report says, one file a section: each makes tables, pictures and sentences of a run."""
