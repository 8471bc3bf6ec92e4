"""What documents say of the extensions' records."""
