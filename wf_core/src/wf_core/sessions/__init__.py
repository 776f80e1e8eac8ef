"""Sessions and runs: opening, running, closing, and the report of what took effect."""
