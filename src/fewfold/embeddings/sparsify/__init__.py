"""Sparsification of anchor tables during training: penalties, schedules, growth and regrowth."""
