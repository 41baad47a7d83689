"""The networks of published measurements in our own code, from which rows of model_profiles.csv are traced."""
