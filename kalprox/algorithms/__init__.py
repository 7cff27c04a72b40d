"""The interface of an algorithm, the proximal filter, and refinement; the paper's own recursions are in `paper`."""
