"""What readers see: marks that every page shares, and the pages of the book."""
