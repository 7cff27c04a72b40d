"""Linear algebra of triangles: QR and solves, rows folded in, rank, rows taken out."""
