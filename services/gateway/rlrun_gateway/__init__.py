"""Public HTTP edge: dialects in, the internal conversation form out; authentication and limits; stateless."""
