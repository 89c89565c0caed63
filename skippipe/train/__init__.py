"""Training, one folder for each step: resolve, launch, connect, prepare, loop; observe watches all of them."""
