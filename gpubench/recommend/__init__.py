"""Which GPU or instance to pay for, and how certain that is."""
