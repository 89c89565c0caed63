"""Training, one folder for each step of the way: resolve, launch, connect, prepare, loop; observe watches all of them."""
