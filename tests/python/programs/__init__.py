"""Random training programs, run plainly and through headroom, and compared."""
