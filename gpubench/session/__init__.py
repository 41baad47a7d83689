"""One run from request to file; the only room that both measures and stores."""
