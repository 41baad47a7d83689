"""The networks of published measurements, defined by our own code: what a row of model_profiles.csv is of."""
