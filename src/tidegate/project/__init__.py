"""A project folder read: its settings, its YAML with lines, its views, its problems."""
