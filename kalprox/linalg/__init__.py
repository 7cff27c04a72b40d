"""Linear algebra of upper triangles: QR and solves, folding rows in, rank, taking rows out."""
