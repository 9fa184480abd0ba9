"""EAGLE-3: the same network read level by level, each draft token fed back for the next one."""
