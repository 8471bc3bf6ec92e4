"""Write documents from the extensions' records."""
