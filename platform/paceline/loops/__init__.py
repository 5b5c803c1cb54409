"""The loops of fit, validate, test and predict."""
