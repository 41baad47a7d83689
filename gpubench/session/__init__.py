"""One run from request to file; the only package that both measures and stores."""
