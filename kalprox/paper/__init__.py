"""The paper's experiments (section IV), rebuilt from its text: thin, on top of the library's public names."""
