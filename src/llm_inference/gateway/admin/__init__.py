"""The operator's routes, for keys that name the route group `admin`: what runs, reloading, tiers."""
