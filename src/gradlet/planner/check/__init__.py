"""Checkers of plans, written apart from the planner: they replay a plan over a shadow memory."""
