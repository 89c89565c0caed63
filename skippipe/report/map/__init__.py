"""The map of a plan: nodes by transfer times, coloured by stage; a picture for `map=`, SVG for the page."""
