"""The rendezvous of a job: its ranks find each other, authenticate, and compare what has to be equal."""
