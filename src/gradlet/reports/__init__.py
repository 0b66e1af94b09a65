"""What a plan costs, in the words of the user's model: tables, pictures, and ways out."""

from gradlet.reports.memory import MemoryReport, memory_report

__all__ = ["MemoryReport", "memory_report"]
