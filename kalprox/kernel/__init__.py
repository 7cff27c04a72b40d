"""What is computed in C where it is compiled: functions over arrays, each with a plain reference in NumPy."""
