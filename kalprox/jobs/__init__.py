"""Jobs on files: the work of the commands `kalprox fit`, `predict` and `merge`, independent of the command line."""
