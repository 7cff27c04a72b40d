"""What the pages about a fitted model say."""
