"""What people see: figures taken from plans, and how they are drawn."""
