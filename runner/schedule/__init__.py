"""Schedules, as far as they are thinking: times, what is due, the text of a crontab (pure)."""
