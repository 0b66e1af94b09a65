"""From a training graph and a target to a plan: fusion, schedule, memory, tiles."""
