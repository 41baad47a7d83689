"""Which GPU or instance to pay for, and how sure that is."""
