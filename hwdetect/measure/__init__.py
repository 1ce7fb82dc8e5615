"""What a data sheet cannot say, timed in seconds."""
