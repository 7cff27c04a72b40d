"""What everything else is built on, and that knows nothing of regression."""
