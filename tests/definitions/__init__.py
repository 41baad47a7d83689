"""The networks of published measurements, defined by our own code: the basis of rows in model_profiles.csv."""
