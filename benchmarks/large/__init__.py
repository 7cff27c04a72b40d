"""Large models: structured information on problems with a known answer, and networks on real data."""
