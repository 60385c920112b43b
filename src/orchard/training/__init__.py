"""The trainer: eats samples, knows neither sandboxes nor harnesses."""
