"""Jobs on files: what the commands `kalprox fit`, `predict` and `merge` do, without a terminal."""
